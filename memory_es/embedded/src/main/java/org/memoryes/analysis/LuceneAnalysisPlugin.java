package org.memoryes.analysis;

import java.io.Reader;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.Tokenizer;
import org.apache.lucene.analysis.charfilter.HTMLStripCharFilter;
import org.apache.lucene.analysis.charfilter.MappingCharFilter;
import org.apache.lucene.analysis.charfilter.NormalizeCharMap;
import org.apache.lucene.analysis.core.KeywordTokenizer;
import org.apache.lucene.analysis.core.LetterTokenizer;
import org.apache.lucene.analysis.core.WhitespaceTokenizer;
import org.apache.lucene.analysis.email.UAX29URLEmailTokenizer;
import org.apache.lucene.analysis.pattern.PatternReplaceCharFilter;
import org.apache.lucene.analysis.pattern.PatternTokenizer;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.analysis.th.ThaiTokenizer;
import org.elasticsearch.common.regex.Regex;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.index.analysis.AbstractCharFilterFactory;
import org.elasticsearch.index.analysis.AbstractTokenizerFactory;
import org.elasticsearch.index.analysis.AnalyzerProvider;
import org.elasticsearch.index.analysis.CharFilterFactory;
import org.elasticsearch.index.analysis.NormalizingCharFilterFactory;
import org.elasticsearch.index.analysis.PreBuiltAnalyzerProviderFactory;
import org.elasticsearch.index.analysis.PreConfiguredCharFilter;
import org.elasticsearch.index.analysis.PreConfiguredTokenFilter;
import org.elasticsearch.index.analysis.PreConfiguredTokenizer;
import org.elasticsearch.index.analysis.TokenFilterFactory;
import org.elasticsearch.index.analysis.TokenizerFactory;
import org.elasticsearch.indices.analysis.AnalysisModule.AnalysisProvider;
import org.elasticsearch.plugins.AnalysisPlugin;
import org.elasticsearch.plugins.Plugin;

/**
 * Registers what the minimal distribution lacks because it has no {@code analysis-common} module.
 *
 * <p>All names and settings are those of the full distribution, so that one set of index templates
 * is valid on both. What the core registers itself ({@code standard}, the type {@code stop}, the
 * filter {@code lowercase}) is left out: a second registration stops the node at boot.
 */
public final class LuceneAnalysisPlugin extends Plugin implements AnalysisPlugin {

    private static final String NON_WORD = "\\W+";

    @Override
    public Map<String, AnalysisProvider<AnalyzerProvider<? extends Analyzer>>> getAnalyzers() {
        return Languages.providers();
    }

    @Override
    public List<PreBuiltAnalyzerProviderFactory> getPreBuiltAnalyzerProviderFactories() {
        return Languages.preBuilt();
    }

    @Override
    public Map<String, AnalysisProvider<TokenFilterFactory>> getTokenFilters() {
        return Filters.types();
    }

    @Override
    public List<PreConfiguredTokenFilter> getPreConfiguredTokenFilters() {
        return Filters.byName();
    }

    @Override
    public Map<String, AnalysisProvider<TokenizerFactory>> getTokenizers() {
        Map<String, AnalysisProvider<TokenizerFactory>> all = new TreeMap<>();
        all.put("keyword", tokenizer(settings -> {
            int bufferSize = settings.getAsInt("buffer_size", 256);
            return () -> new KeywordTokenizer(bufferSize);
        }));
        all.put("letter", tokenizer(settings -> LetterTokenizer::new));
        all.put("pattern", tokenizer(settings -> {
            Pattern pattern = Regex.compile(settings.get("pattern", NON_WORD), settings.get("flags"));
            int group = settings.getAsInt("group", -1);
            return () -> new PatternTokenizer(pattern, group);
        }));
        all.put("thai", tokenizer(settings -> ThaiTokenizer::new));
        all.put("uax_url_email", tokenizer(settings -> {
            int longest = maxTokenLength(settings);
            return () -> {
                UAX29URLEmailTokenizer tokenizer = new UAX29URLEmailTokenizer();
                tokenizer.setMaxTokenLength(longest);
                return tokenizer;
            };
        }));
        all.put("whitespace", tokenizer(settings -> {
            int longest = maxTokenLength(settings);
            return () -> new WhitespaceTokenizer(
                TokenStream.DEFAULT_TOKEN_ATTRIBUTE_FACTORY, longest);
        }));
        return all;
    }

    @Override
    public List<PreConfiguredTokenizer> getPreConfiguredTokenizers() {
        return List.of(
            PreConfiguredTokenizer.singleton("keyword", KeywordTokenizer::new),
            PreConfiguredTokenizer.singleton("letter", LetterTokenizer::new),
            PreConfiguredTokenizer.singleton(
                "pattern", () -> new PatternTokenizer(Regex.compile(NON_WORD, null), -1)),
            PreConfiguredTokenizer.singleton("thai", ThaiTokenizer::new),
            PreConfiguredTokenizer.singleton("uax_url_email", UAX29URLEmailTokenizer::new),
            PreConfiguredTokenizer.singleton("whitespace", WhitespaceTokenizer::new));
    }

    @Override
    public Map<String, AnalysisProvider<CharFilterFactory>> getCharFilters() {
        Map<String, AnalysisProvider<CharFilterFactory>> all = new TreeMap<>();
        all.put("html_strip", (index, env, name, settings) -> {
            List<String> kept = settings.getAsList("escaped_tags");
            return new AbstractCharFilterFactory(name) {
                @Override
                public Reader create(Reader in) {
                    return kept.isEmpty()
                        ? new HTMLStripCharFilter(in)
                        : new HTMLStripCharFilter(in, Set.copyOf(kept));
                }
            };
        });
        all.put("mapping", charFilter((env, name, settings) -> {
            NormalizeCharMap map = MappingRules.read(env, settings);
            return in -> new MappingCharFilter(map, in);
        }));
        all.put("pattern_replace", charFilter((env, name, settings) -> {
            String regex = settings.get("pattern", "");
            if (regex.isEmpty()) {
                throw new IllegalArgumentException(
                    "[pattern] is missing for char filter [" + name + "]");
            }
            Pattern pattern = Regex.compile(regex, settings.get("flags"));
            String replacement = settings.get("replacement", "");
            return in -> new PatternReplaceCharFilter(pattern, replacement, in);
        }));
        return all;
    }

    @Override
    public List<PreConfiguredCharFilter> getPreConfiguredCharFilters() {
        return List.of(PreConfiguredCharFilter.singleton("html_strip", false, HTMLStripCharFilter::new));
    }

    private static int maxTokenLength(Settings settings) {
        return settings.getAsInt("max_token_length", StandardAnalyzer.DEFAULT_MAX_TOKEN_LENGTH);
    }

    private static AnalysisProvider<TokenizerFactory> tokenizer(
        Function<Settings, Supplier<Tokenizer>> read) {
        return (index, env, name, settings) -> {
            Supplier<Tokenizer> make = read.apply(settings);
            return new AbstractTokenizerFactory(name) {
                @Override
                public Tokenizer create() {
                    return make.get();
                }
            };
        };
    }

    /** Reads a char filter's settings once and returns what wraps each reader. */
    @FunctionalInterface
    private interface ReadCharFilter {
        Function<Reader, Reader> from(Environment env, String name, Settings settings);
    }

    private static AnalysisProvider<CharFilterFactory> charFilter(ReadCharFilter read) {
        return AnalysisPlugin.requiresAnalysisSettings((index, env, name, settings) ->
            new Normalizing(name, read.from(env, name, settings)));
    }

    private static final class Normalizing extends AbstractCharFilterFactory
        implements NormalizingCharFilterFactory {
        private final Function<Reader, Reader> make;

        Normalizing(String name, Function<Reader, Reader> make) {
            super(name);
            this.make = make;
        }

        @Override
        public Reader create(Reader in) {
            return make.apply(in);
        }
    }
}
