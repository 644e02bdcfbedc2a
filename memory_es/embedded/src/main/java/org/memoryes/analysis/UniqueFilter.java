package org.memoryes.analysis;

import java.io.IOException;
import org.apache.lucene.analysis.CharArraySet;
import org.apache.lucene.analysis.TokenFilter;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.analysis.tokenattributes.PositionIncrementAttribute;

/**
 * Drops a token that was seen before: in the whole text, or only among those at the same position.
 *
 * <p>Like the filter of the full distribution, and unlike Lucene's filtering base class, it leaves no
 * gap in the positions.
 */
final class UniqueFilter extends TokenFilter {

    private final CharTermAttribute term = addAttribute(CharTermAttribute.class);
    private final PositionIncrementAttribute step = addAttribute(PositionIncrementAttribute.class);
    private final boolean samePositionOnly;
    private final CharArraySet seen = new CharArraySet(16, false);

    UniqueFilter(TokenStream input, boolean samePositionOnly) {
        super(input);
        this.samePositionOnly = samePositionOnly;
    }

    @Override
    public boolean incrementToken() throws IOException {
        while (input.incrementToken()) {
            if (samePositionOnly && step.getPositionIncrement() > 0) {
                seen.clear();
            }
            // add() keeps the very string, so it must be a copy of the reused buffer.
            if (seen.add(term.toString())) {
                return true;
            }
        }
        return false;
    }

    @Override
    public void reset() throws IOException {
        super.reset();
        seen.clear();
    }
}
