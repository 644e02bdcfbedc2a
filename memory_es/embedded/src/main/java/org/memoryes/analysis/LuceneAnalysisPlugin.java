package org.memoryes.analysis;

import static org.elasticsearch.plugins.AnalysisPlugin.requiresAnalysisSettings;

import java.io.Reader;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.ar.ArabicAnalyzer;
import org.apache.lucene.analysis.ar.ArabicNormalizationFilter;
import org.apache.lucene.analysis.ar.ArabicStemFilter;
import org.apache.lucene.analysis.bn.BengaliAnalyzer;
import org.apache.lucene.analysis.bn.BengaliNormalizationFilter;
import org.apache.lucene.analysis.bn.BengaliStemFilter;
import org.apache.lucene.analysis.charfilter.MappingCharFilter;
import org.apache.lucene.analysis.charfilter.NormalizeCharMap;
import org.apache.lucene.analysis.cjk.CJKAnalyzer;
import org.apache.lucene.analysis.cjk.CJKBigramFilter;
import org.apache.lucene.analysis.cjk.CJKWidthFilter;
import org.apache.lucene.analysis.core.DecimalDigitFilter;
import org.apache.lucene.analysis.email.UAX29URLEmailTokenizer;
import org.apache.lucene.analysis.en.EnglishAnalyzer;
import org.apache.lucene.analysis.en.EnglishPossessiveFilter;
import org.apache.lucene.analysis.en.PorterStemFilter;
import org.apache.lucene.analysis.fa.PersianAnalyzer;
import org.apache.lucene.analysis.fa.PersianNormalizationFilter;
import org.apache.lucene.analysis.fa.PersianStemFilter;
import org.apache.lucene.analysis.hi.HindiAnalyzer;
import org.apache.lucene.analysis.hi.HindiNormalizationFilter;
import org.apache.lucene.analysis.hi.HindiStemFilter;
import org.apache.lucene.analysis.in.IndicNormalizationFilter;
import org.apache.lucene.analysis.miscellaneous.ASCIIFoldingFilter;
import org.apache.lucene.analysis.pattern.PatternCaptureGroupTokenFilter;
import org.apache.lucene.analysis.pattern.PatternTokenizer;
import org.apache.lucene.analysis.th.ThaiAnalyzer;
import org.apache.lucene.analysis.th.ThaiTokenizer;
import org.elasticsearch.common.regex.Regex;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.index.analysis.CharFilterFactory;
import org.elasticsearch.index.analysis.NormalizingCharFilterFactory;
import org.elasticsearch.index.analysis.PreBuiltAnalyzerProviderFactory;
import org.elasticsearch.index.analysis.PreConfiguredTokenFilter;
import org.elasticsearch.index.analysis.PreConfiguredTokenizer;
import org.elasticsearch.index.analysis.TokenFilterFactory;
import org.elasticsearch.index.analysis.TokenizerFactory;
import org.elasticsearch.indices.analysis.AnalysisModule.AnalysisProvider;
import org.elasticsearch.indices.analysis.PreBuiltCacheFactory.CachingStrategy;
import org.elasticsearch.plugins.AnalysisPlugin;
import org.elasticsearch.plugins.Plugin;

/**
 * Registers what the minimal distribution lacks because it has no {@code analysis-common} module: what
 * the {@code .security} index needs, and what our index templates use.
 *
 * <p>Names and settings are those of the full distribution, so that one set of templates is valid on
 * both. What our templates use without settings is registered by name alone: an index that configures
 * it is refused here. What the core registers itself ({@code standard}, {@code stop},
 * {@code lowercase}) is left out: a second registration stops the node at boot.
 */
public final class LuceneAnalysisPlugin extends Plugin implements AnalysisPlugin {

    /** What the {@code stemmer} filter can be: its setting {@code language} names one of these. */
    private static final Map<String, UnaryOperator<TokenStream>> STEMMERS = Map.of(
        "arabic", ArabicStemFilter::new,
        "bengali", BengaliStemFilter::new,
        "english", PorterStemFilter::new,
        "hindi", HindiStemFilter::new,
        "persian", PersianStemFilter::new,
        "porter", PorterStemFilter::new,
        "possessive_english", EnglishPossessiveFilter::new);

    private static final Pattern MAPPING_RULE = Pattern.compile("(.*)=>(.*)");
    private static final Pattern UNICODE_ESCAPE = Pattern.compile("\\\\u(\\p{XDigit}{4})");

    @Override
    public List<PreBuiltAnalyzerProviderFactory> getPreBuiltAnalyzerProviderFactories() {
        return List.of(
            analyzer("arabic", ArabicAnalyzer::new),
            analyzer("bengali", BengaliAnalyzer::new),
            analyzer("cjk", CJKAnalyzer::new),
            analyzer("english", EnglishAnalyzer::new),
            analyzer("hindi", HindiAnalyzer::new),
            analyzer("persian", PersianAnalyzer::new),
            analyzer("thai", ThaiAnalyzer::new));
    }

    private static PreBuiltAnalyzerProviderFactory analyzer(String name, Supplier<Analyzer> make) {
        return new PreBuiltAnalyzerProviderFactory(name, CachingStrategy.LUCENE, make);
    }

    @Override
    public List<PreConfiguredTokenizer> getPreConfiguredTokenizers() {
        return List.of(
            PreConfiguredTokenizer.singleton("thai", ThaiTokenizer::new),
            PreConfiguredTokenizer.singleton("uax_url_email", UAX29URLEmailTokenizer::new));
    }

    @Override
    public List<PreConfiguredTokenFilter> getPreConfiguredTokenFilters() {
        return List.of(
            folding("arabic_normalization", ArabicNormalizationFilter::new),
            folding("asciifolding", ASCIIFoldingFilter::new),
            folding("bengali_normalization", BengaliNormalizationFilter::new),
            folding("cjk_width", CJKWidthFilter::new),
            folding("decimal_digit", DecimalDigitFilter::new),
            folding("hindi_normalization", HindiNormalizationFilter::new),
            folding("indic_normalization", IndicNormalizationFilter::new),
            folding("persian_normalization", PersianNormalizationFilter::new),
            PreConfiguredTokenFilter.singleton("cjk_bigram", false, CJKBigramFilter::new),
            PreConfiguredTokenFilter.singleton("unique", false, UniqueFilter::new));
    }

    /** One that prefix and wildcard queries pass through too, and that normalizers may name. */
    private static PreConfiguredTokenFilter folding(String name, UnaryOperator<TokenStream> wrap) {
        return PreConfiguredTokenFilter.singleton(name, true, wrap);
    }

    @Override
    public Map<String, AnalysisProvider<TokenizerFactory>> getTokenizers() {
        return Map.of("pattern", requiresAnalysisSettings((index, env, name, settings) -> {
            Pattern pattern = Regex.compile(settings.get("pattern", "\\W+"), settings.get("flags"));
            int group = settings.getAsInt("group", -1);
            return TokenizerFactory.newFactory(name, () -> new PatternTokenizer(pattern, group));
        }));
    }

    @Override
    public Map<String, AnalysisProvider<TokenFilterFactory>> getTokenFilters() {
        return Map.of(
            "pattern_capture", requiresAnalysisSettings((index, env, name, settings) -> {
                Pattern[] patterns = required(settings, "patterns", name).stream()
                    .map(Pattern::compile).toArray(Pattern[]::new);
                boolean original = settings.getAsBoolean("preserve_original", true);
                return new Filter(name, in -> new PatternCaptureGroupTokenFilter(in, original, patterns));
            }),
            "stemmer", requiresAnalysisSettings((index, env, name, settings) -> {
                String language = settings.get("language", settings.get("name", "porter"));
                UnaryOperator<TokenStream> stemmer = STEMMERS.get(language.toLowerCase(Locale.ROOT));
                if (stemmer == null) {
                    throw new IllegalArgumentException("Invalid stemmer specified: " + language);
                }
                return new Filter(name, stemmer);
            }));
    }

    @Override
    public Map<String, AnalysisProvider<CharFilterFactory>> getCharFilters() {
        return Map.of("mapping", requiresAnalysisSettings((index, env, name, settings) -> {
            NormalizeCharMap.Builder map = new NormalizeCharMap.Builder();
            for (String rule : required(settings, "mappings", name)) {
                Matcher sides = MAPPING_RULE.matcher(rule);
                if (!sides.matches()) {
                    throw new IllegalArgumentException("Invalid Mapping Rule : [" + rule + "]");
                }
                map.add(unescape(sides.group(1).trim()), unescape(sides.group(2).trim()));
            }
            return new Mapping(name, map.build());
        }));
    }

    private static List<String> required(Settings settings, String key, String name) {
        List<String> values = settings.getAsList(key);
        if (values.isEmpty()) {
            throw new IllegalArgumentException("[" + key + "] is missing for [" + name + "]");
        }
        return values;
    }

    private static String unescape(String text) {
        String plain = UNICODE_ESCAPE.matcher(text).replaceAll(escape ->
            Matcher.quoteReplacement(Character.toString(Integer.parseInt(escape.group(1), 16))));
        if (plain.contains("\\")) {
            throw new IllegalArgumentException(
                "the embedded node reads no other escapes than those of four digits: [" + text + "]");
        }
        return plain;
    }

    private record Filter(String name, UnaryOperator<TokenStream> wrap) implements TokenFilterFactory {
        @Override
        public TokenStream create(TokenStream in) {
            return wrap.apply(in);
        }
    }

    private record Mapping(String name, NormalizeCharMap map) implements NormalizingCharFilterFactory {
        @Override
        public Reader create(Reader in) {
            return new MappingCharFilter(map, in);
        }
    }
}
