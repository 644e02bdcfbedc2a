package org.memoryes.analysis;

import org.apache.lucene.analysis.CharArraySet;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.miscellaneous.WordDelimiterGraphFilter;
import org.apache.lucene.analysis.miscellaneous.WordDelimiterIterator;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.index.analysis.AbstractTokenFilterFactory;
import org.elasticsearch.index.analysis.Analysis;
import org.elasticsearch.index.analysis.TokenFilterFactory;

/** The {@code word_delimiter_graph} filter: "Power-Shot500" becomes "Power", "Shot", "500". */
final class WordDelimiterGraph extends AbstractTokenFilterFactory {

    private static final byte[] TABLE = WordDelimiterIterator.DEFAULT_WORD_DELIM_TABLE;
    private static final int DEFAULT_FLAGS =
        WordDelimiterGraphFilter.GENERATE_WORD_PARTS
            | WordDelimiterGraphFilter.GENERATE_NUMBER_PARTS
            | WordDelimiterGraphFilter.SPLIT_ON_CASE_CHANGE
            | WordDelimiterGraphFilter.SPLIT_ON_NUMERICS
            | WordDelimiterGraphFilter.STEM_ENGLISH_POSSESSIVE;

    private final int flags;
    private final CharArraySet protectedWords;
    private final boolean adjustOffsets;

    private WordDelimiterGraph(String name, int flags, CharArraySet words, boolean adjustOffsets) {
        super(name);
        this.flags = flags;
        this.protectedWords = words;
        this.adjustOffsets = adjustOffsets;
    }

    static TokenFilterFactory provider(
        Object index, Environment env, String name, Settings settings) {
        if (Analysis.getWordList(env, settings, "type_table") != null) {
            // Ignoring it would index other tokens than the full distribution does.
            throw new IllegalArgumentException(
                "[type_table] of token filter [" + name + "] is not supported by the embedded node");
        }
        int flags =
            flag(settings, "generate_word_parts", WordDelimiterGraphFilter.GENERATE_WORD_PARTS)
                | flag(settings, "generate_number_parts", WordDelimiterGraphFilter.GENERATE_NUMBER_PARTS)
                | flag(settings, "catenate_words", WordDelimiterGraphFilter.CATENATE_WORDS)
                | flag(settings, "catenate_numbers", WordDelimiterGraphFilter.CATENATE_NUMBERS)
                | flag(settings, "catenate_all", WordDelimiterGraphFilter.CATENATE_ALL)
                | flag(settings, "split_on_case_change", WordDelimiterGraphFilter.SPLIT_ON_CASE_CHANGE)
                | flag(settings, "preserve_original", WordDelimiterGraphFilter.PRESERVE_ORIGINAL)
                | flag(settings, "split_on_numerics", WordDelimiterGraphFilter.SPLIT_ON_NUMERICS)
                | flag(settings, "stem_english_possessive", WordDelimiterGraphFilter.STEM_ENGLISH_POSSESSIVE)
                | flag(settings, "ignore_keywords", WordDelimiterGraphFilter.IGNORE_KEYWORDS);
        CharArraySet words = Analysis.getWordSet(env, settings, "protected_words");
        return new WordDelimiterGraph(
            name, flags, words, settings.getAsBoolean("adjust_offsets", true));
    }

    private static int flag(Settings settings, String key, int flag) {
        return settings.getAsBoolean(key, (DEFAULT_FLAGS & flag) != 0) ? flag : 0;
    }

    static TokenStream byDefault(TokenStream in) {
        return new WordDelimiterGraphFilter(in, true, TABLE, DEFAULT_FLAGS, null);
    }

    @Override
    public TokenStream create(TokenStream in) {
        return new WordDelimiterGraphFilter(in, adjustOffsets, TABLE, flags, protectedWords);
    }

    @Override
    public TokenFilterFactory getSynonymFilter() {
        throw new IllegalArgumentException(
            "Token filter [" + name() + "] cannot be used to parse synonyms");
    }
}
