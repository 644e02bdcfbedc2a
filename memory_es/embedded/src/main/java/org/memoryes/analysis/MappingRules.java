package org.memoryes.analysis;

import java.util.List;
import org.apache.lucene.analysis.charfilter.NormalizeCharMap;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.index.analysis.Analysis;

/** The rules of the {@code mapping} char filter: {@code "from => to"}, with Java's escapes. */
final class MappingRules {

    private static final String ARROW = "=>";

    private MappingRules() {}

    static NormalizeCharMap read(Environment env, Settings settings) {
        List<String> rules = Analysis.getWordList(env, settings, "mappings");
        if (rules == null) {
            throw new IllegalArgumentException(
                "mapping requires either `mappings` or `mappings_path` to be configured");
        }
        NormalizeCharMap.Builder map = new NormalizeCharMap.Builder();
        for (String rule : rules) {
            int arrow = rule.lastIndexOf(ARROW);
            if (arrow < 0) {
                throw new IllegalArgumentException("Invalid Mapping Rule : [" + rule + "]");
            }
            map.add(
                unescape(rule.substring(0, arrow).trim()),
                unescape(rule.substring(arrow + ARROW.length()).trim()));
        }
        return map.build();
    }

    private static String unescape(String text) {
        StringBuilder out = new StringBuilder(text.length());
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c != '\\') {
                out.append(c);
                continue;
            }
            if (++i == text.length()) {
                throw new IllegalArgumentException("Invalid escaped char in [" + text + "]");
            }
            switch (text.charAt(i)) {
                case 'n' -> out.append('\n');
                case 't' -> out.append('\t');
                case 'r' -> out.append('\r');
                case 'b' -> out.append('\b');
                case 'f' -> out.append('\f');
                case 'u' -> {
                    if (i + 4 >= text.length()) {
                        throw new IllegalArgumentException("Invalid escaped char in [" + text + "]");
                    }
                    out.append((char) Integer.parseInt(text, i + 1, i + 5, 16));
                    i += 4;
                }
                default -> out.append(text.charAt(i));
            }
        }
        return out.toString();
    }
}
