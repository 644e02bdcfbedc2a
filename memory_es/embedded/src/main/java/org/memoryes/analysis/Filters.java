package org.memoryes.analysis;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.regex.Pattern;
import org.apache.lucene.analysis.CharArraySet;
import org.apache.lucene.analysis.StopFilter;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.ar.ArabicNormalizationFilter;
import org.apache.lucene.analysis.ar.ArabicStemFilter;
import org.apache.lucene.analysis.bn.BengaliNormalizationFilter;
import org.apache.lucene.analysis.cjk.CJKBigramFilter;
import org.apache.lucene.analysis.cjk.CJKWidthFilter;
import org.apache.lucene.analysis.ckb.SoraniNormalizationFilter;
import org.apache.lucene.analysis.core.DecimalDigitFilter;
import org.apache.lucene.analysis.core.FlattenGraphFilter;
import org.apache.lucene.analysis.core.UpperCaseFilter;
import org.apache.lucene.analysis.de.GermanNormalizationFilter;
import org.apache.lucene.analysis.en.EnglishAnalyzer;
import org.apache.lucene.analysis.en.KStemFilter;
import org.apache.lucene.analysis.en.PorterStemFilter;
import org.apache.lucene.analysis.fa.PersianNormalizationFilter;
import org.apache.lucene.analysis.fa.PersianStemFilter;
import org.apache.lucene.analysis.fr.FrenchAnalyzer;
import org.apache.lucene.analysis.hi.HindiNormalizationFilter;
import org.apache.lucene.analysis.in.IndicNormalizationFilter;
import org.apache.lucene.analysis.miscellaneous.ASCIIFoldingFilter;
import org.apache.lucene.analysis.miscellaneous.KeywordRepeatFilter;
import org.apache.lucene.analysis.miscellaneous.LengthFilter;
import org.apache.lucene.analysis.miscellaneous.PatternKeywordMarkerFilter;
import org.apache.lucene.analysis.miscellaneous.RemoveDuplicatesTokenFilter;
import org.apache.lucene.analysis.miscellaneous.ScandinavianFoldingFilter;
import org.apache.lucene.analysis.miscellaneous.ScandinavianNormalizationFilter;
import org.apache.lucene.analysis.miscellaneous.SetKeywordMarkerFilter;
import org.apache.lucene.analysis.miscellaneous.TrimFilter;
import org.apache.lucene.analysis.miscellaneous.TruncateTokenFilter;
import org.apache.lucene.analysis.pattern.PatternCaptureGroupTokenFilter;
import org.apache.lucene.analysis.pattern.PatternReplaceFilter;
import org.apache.lucene.analysis.reverse.ReverseStringFilter;
import org.apache.lucene.analysis.sr.SerbianNormalizationFilter;
import org.apache.lucene.analysis.tr.ApostropheFilter;
import org.apache.lucene.analysis.util.ElisionFilter;
import org.elasticsearch.common.regex.Regex;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.index.analysis.AbstractTokenFilterFactory;
import org.elasticsearch.index.analysis.Analysis;
import org.elasticsearch.index.analysis.NormalizingTokenFilterFactory;
import org.elasticsearch.index.analysis.PreConfiguredTokenFilter;
import org.elasticsearch.index.analysis.TokenFilterFactory;
import org.elasticsearch.indices.analysis.AnalysisModule.AnalysisProvider;
import org.elasticsearch.lucene.analysis.miscellaneous.DisableGraphAttribute;
import org.elasticsearch.plugins.AnalysisPlugin;

/** The token filters, with the settings that the full distribution reads. */
final class Filters {

    private Filters() {}

    /** Reads a filter's settings once and returns what wraps each token stream. */
    @FunctionalInterface
    private interface Read {
        Function<TokenStream, TokenStream> from(Environment env, String name, Settings settings);
    }

    private static final Map<String, AnalysisProvider<TokenFilterFactory>> TYPES = new TreeMap<>();
    private static final List<PreConfiguredTokenFilter> BY_NAME = new ArrayList<>();

    static {
        // Folding and normalising filters also apply to wildcard and term queries and in normalizers.
        folding("arabic_normalization", ArabicNormalizationFilter::new);
        folding("bengali_normalization", BengaliNormalizationFilter::new);
        folding("cjk_width", CJKWidthFilter::new);
        folding("decimal_digit", DecimalDigitFilter::new);
        folding("german_normalization", GermanNormalizationFilter::new);
        folding("hindi_normalization", HindiNormalizationFilter::new);
        folding("indic_normalization", IndicNormalizationFilter::new);
        folding("persian_normalization", PersianNormalizationFilter::new);
        folding("scandinavian_folding", ScandinavianFoldingFilter::new);
        folding("scandinavian_normalization", ScandinavianNormalizationFilter::new);
        folding("sorani_normalization", SoraniNormalizationFilter::new);
        folding("trim", TrimFilter::new);
        folding("uppercase", UpperCaseFilter::new);
        TYPES.put("serbian_normalization", normalizing(
            (env, name, settings) -> SerbianNormalizationFilter::new));
        TYPES.put("asciifolding", Filters::asciiFolding);
        byName("asciifolding", true, ASCIIFoldingFilter::new);
        TYPES.put("elision", needsSettings(normalizing(Filters::elision)));
        byName("elision", true, in -> new ElisionFilter(in, FrenchAnalyzer.DEFAULT_ARTICLES));
        TYPES.put("pattern_replace", needsSettings(normalizing(Filters::patternReplace)));

        plain("apostrophe", ApostropheFilter::new);
        plain("arabic_stem", ArabicStemFilter::new);
        plain("kstem", KStemFilter::new);
        plain("porter_stem", PorterStemFilter::new);
        plain("reverse", ReverseStringFilter::new);
        type("persian_stem", (env, name, settings) -> PersianStemFilter::new);
        type("flatten_graph", (env, name, settings) -> FlattenGraphFilter::new);
        type("remove_duplicates", (env, name, settings) -> RemoveDuplicatesTokenFilter::new);
        byName("keyword_repeat", false, KeywordRepeatFilter::new);

        type("cjk_bigram", Filters::cjkBigram);
        byName("cjk_bigram", false, CJKBigramFilter::new);
        type("length", Filters::length);
        byName("length", false, in -> new LengthFilter(in, 0, Integer.MAX_VALUE));
        type("stemmer", (env, name, settings) -> Stemmers.read(settings));
        byName("stemmer", false, PorterStemFilter::new);
        type("unique", Filters::unique);
        byName("unique", false, in -> new UniqueFilter(in, false));
        TYPES.put("keyword_marker", needsSettings(factory(Filters::keywordMarker)));
        TYPES.put("pattern_capture", needsSettings(factory(Filters::patternCapture)));
        TYPES.put("truncate", needsSettings(factory(Filters::truncate)));
        byName("truncate", false, in -> new TruncateTokenFilter(in, 10));
        TYPES.put("word_delimiter_graph", WordDelimiterGraph::provider);
        BY_NAME.add(PreConfiguredTokenFilter.singleton(
            "word_delimiter_graph", false, false, WordDelimiterGraph::byDefault));
        // The core has the type "stop", but not the filter of that name.
        byName("stop", false, in -> new StopFilter(in, EnglishAnalyzer.ENGLISH_STOP_WORDS_SET));
    }

    static Map<String, AnalysisProvider<TokenFilterFactory>> types() {
        return TYPES;
    }

    static List<PreConfiguredTokenFilter> byName() {
        return BY_NAME;
    }

    private static Function<TokenStream, TokenStream> cjkBigram(
        Environment env, String name, Settings settings) {
        boolean unigramsToo = settings.getAsBoolean("output_unigrams", false);
        Set<String> ignored = new HashSet<>(settings.getAsList("ignored_scripts"));
        int scripts = 0;
        scripts |= ignored.contains("han") ? 0 : CJKBigramFilter.HAN;
        scripts |= ignored.contains("hiragana") ? 0 : CJKBigramFilter.HIRAGANA;
        scripts |= ignored.contains("katakana") ? 0 : CJKBigramFilter.KATAKANA;
        scripts |= ignored.contains("hangul") ? 0 : CJKBigramFilter.HANGUL;
        int flags = scripts;
        return in -> {
            TokenStream out = new CJKBigramFilter(in, flags, unigramsToo);
            if (unigramsToo) {
                // Unigrams and bigrams overlap: queries must not read the stream as a graph.
                out.addAttribute(DisableGraphAttribute.class);
            }
            return out;
        };
    }

    private static Function<TokenStream, TokenStream> elision(
        Environment env, String name, Settings settings) {
        CharArraySet articles = Analysis.parseArticles(env, settings);
        if (articles == null) {
            throw new IllegalArgumentException(
                "elision filter requires [articles] or [articles_path] setting");
        }
        return in -> new ElisionFilter(in, articles);
    }

    private static Function<TokenStream, TokenStream> keywordMarker(
        Environment env, String name, Settings settings) {
        String regex = settings.get("keywords_pattern");
        CharArraySet words = Analysis.getWordSet(env, settings, "keywords");
        if (regex != null && words != null) {
            throw new IllegalArgumentException(
                "cannot specify both `keywords_pattern` and `keywords` or `keywords_path`");
        }
        if (regex != null) {
            Pattern pattern = Pattern.compile(regex);
            return in -> new PatternKeywordMarkerFilter(in, pattern);
        }
        if (words == null) {
            throw new IllegalArgumentException(
                "keyword filter requires either `keywords`, `keywords_path`, or `keywords_pattern`");
        }
        CharArraySet keywords = new CharArraySet(words, settings.getAsBoolean("ignore_case", false));
        return in -> new SetKeywordMarkerFilter(in, keywords);
    }

    private static Function<TokenStream, TokenStream> length(
        Environment env, String name, Settings settings) {
        int min = settings.getAsInt("min", 0);
        int max = settings.getAsInt("max", Integer.MAX_VALUE);
        return in -> new LengthFilter(in, min, max);
    }

    private static Function<TokenStream, TokenStream> patternCapture(
        Environment env, String name, Settings settings) {
        List<String> regexes = settings.getAsList("patterns", null, false);
        if (regexes == null) {
            throw new IllegalArgumentException("[patterns] is missing for token filter [" + name + "]");
        }
        Pattern[] patterns = regexes.stream().map(Pattern::compile).toArray(Pattern[]::new);
        boolean keepOriginal = settings.getAsBoolean("preserve_original", true);
        return in -> new PatternCaptureGroupTokenFilter(in, keepOriginal, patterns);
    }

    private static Function<TokenStream, TokenStream> patternReplace(
        Environment env, String name, Settings settings) {
        String regex = settings.get("pattern");
        if (regex == null) {
            throw new IllegalArgumentException("[pattern] is missing for token filter [" + name + "]");
        }
        Pattern pattern = Regex.compile(regex, settings.get("flags"));
        String replacement = settings.get("replacement", "");
        boolean all = settings.getAsBoolean("all", true);
        return in -> new PatternReplaceFilter(in, pattern, replacement, all);
    }

    private static Function<TokenStream, TokenStream> truncate(
        Environment env, String name, Settings settings) {
        int length = settings.getAsInt("length", -1);
        if (length <= 0) {
            throw new IllegalArgumentException("length parameter must be provided");
        }
        return in -> new TruncateTokenFilter(in, length);
    }

    private static Function<TokenStream, TokenStream> unique(
        Environment env, String name, Settings settings) {
        boolean samePositionOnly = settings.getAsBoolean("only_on_same_position", false);
        return in -> new UniqueFilter(in, samePositionOnly);
    }

    private static TokenFilterFactory asciiFolding(
        Object index, Environment env, String name, Settings settings) {
        boolean keepOriginal = settings.getAsBoolean("preserve_original", false);
        return new Plain(name, in -> new ASCIIFoldingFilter(in, keepOriginal)) {
            @Override
            public TokenStream normalize(TokenStream in) {
                return new ASCIIFoldingFilter(in, false); // a normalised term is exactly one token
            }

            @Override
            public TokenFilterFactory getSynonymFilter() {
                return new Plain(name, in -> new ASCIIFoldingFilter(in, false));
            }
        };
    }

    private static void folding(String name, Function<TokenStream, TokenStream> make) {
        TYPES.put(name, normalizing((env, filter, settings) -> make));
        byName(name, true, make);
    }

    private static void plain(String name, Function<TokenStream, TokenStream> make) {
        type(name, (env, filter, settings) -> make);
        byName(name, false, make);
    }

    private static void type(String name, Read read) {
        TYPES.put(name, factory(read));
    }

    private static void byName(
        String name, boolean forNormalizing, Function<TokenStream, TokenStream> make) {
        BY_NAME.add(PreConfiguredTokenFilter.singleton(name, forNormalizing, make));
    }

    private static AnalysisProvider<TokenFilterFactory> factory(Read read) {
        return (index, env, name, settings) -> new Plain(name, read.from(env, name, settings));
    }

    private static AnalysisProvider<TokenFilterFactory> normalizing(Read read) {
        return (index, env, name, settings) -> new Normalizing(name, read.from(env, name, settings));
    }

    /** A filter that means nothing without settings is not built for indices that never name it. */
    private static AnalysisProvider<TokenFilterFactory> needsSettings(
        AnalysisProvider<TokenFilterFactory> provider) {
        return AnalysisPlugin.requiresAnalysisSettings(provider);
    }

    private static class Plain extends AbstractTokenFilterFactory {
        private final Function<TokenStream, TokenStream> make;

        Plain(String name, Function<TokenStream, TokenStream> make) {
            super(name);
            this.make = make;
        }

        @Override
        public TokenStream create(TokenStream in) {
            return make.apply(in);
        }
    }

    private static final class Normalizing extends Plain implements NormalizingTokenFilterFactory {
        Normalizing(String name, Function<TokenStream, TokenStream> make) {
            super(name, make);
        }
    }
}
