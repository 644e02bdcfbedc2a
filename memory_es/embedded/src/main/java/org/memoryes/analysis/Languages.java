package org.memoryes.analysis;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.CharArraySet;
import org.apache.lucene.analysis.ar.ArabicAnalyzer;
import org.apache.lucene.analysis.bg.BulgarianAnalyzer;
import org.apache.lucene.analysis.bn.BengaliAnalyzer;
import org.apache.lucene.analysis.br.BrazilianAnalyzer;
import org.apache.lucene.analysis.ca.CatalanAnalyzer;
import org.apache.lucene.analysis.cjk.CJKAnalyzer;
import org.apache.lucene.analysis.ckb.SoraniAnalyzer;
import org.apache.lucene.analysis.core.KeywordAnalyzer;
import org.apache.lucene.analysis.core.SimpleAnalyzer;
import org.apache.lucene.analysis.core.StopAnalyzer;
import org.apache.lucene.analysis.core.WhitespaceAnalyzer;
import org.apache.lucene.analysis.cz.CzechAnalyzer;
import org.apache.lucene.analysis.da.DanishAnalyzer;
import org.apache.lucene.analysis.de.GermanAnalyzer;
import org.apache.lucene.analysis.el.GreekAnalyzer;
import org.apache.lucene.analysis.en.EnglishAnalyzer;
import org.apache.lucene.analysis.es.SpanishAnalyzer;
import org.apache.lucene.analysis.et.EstonianAnalyzer;
import org.apache.lucene.analysis.eu.BasqueAnalyzer;
import org.apache.lucene.analysis.fa.PersianAnalyzer;
import org.apache.lucene.analysis.fi.FinnishAnalyzer;
import org.apache.lucene.analysis.fr.FrenchAnalyzer;
import org.apache.lucene.analysis.ga.IrishAnalyzer;
import org.apache.lucene.analysis.gl.GalicianAnalyzer;
import org.apache.lucene.analysis.hi.HindiAnalyzer;
import org.apache.lucene.analysis.hu.HungarianAnalyzer;
import org.apache.lucene.analysis.hy.ArmenianAnalyzer;
import org.apache.lucene.analysis.id.IndonesianAnalyzer;
import org.apache.lucene.analysis.it.ItalianAnalyzer;
import org.apache.lucene.analysis.lt.LithuanianAnalyzer;
import org.apache.lucene.analysis.lv.LatvianAnalyzer;
import org.apache.lucene.analysis.nl.DutchAnalyzer;
import org.apache.lucene.analysis.no.NorwegianAnalyzer;
import org.apache.lucene.analysis.pt.PortugueseAnalyzer;
import org.apache.lucene.analysis.ro.RomanianAnalyzer;
import org.apache.lucene.analysis.ru.RussianAnalyzer;
import org.apache.lucene.analysis.sv.SwedishAnalyzer;
import org.apache.lucene.analysis.th.ThaiAnalyzer;
import org.apache.lucene.analysis.tr.TurkishAnalyzer;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.index.analysis.AbstractIndexAnalyzerProvider;
import org.elasticsearch.index.analysis.Analysis;
import org.elasticsearch.index.analysis.AnalyzerProvider;
import org.elasticsearch.index.analysis.PreBuiltAnalyzerProviderFactory;
import org.elasticsearch.indices.analysis.AnalysisModule.AnalysisProvider;
import org.elasticsearch.indices.analysis.PreBuiltCacheFactory.CachingStrategy;

/** The analyzers: Lucene's, read from the settings {@code stopwords} and {@code stem_exclusion}. */
final class Languages {

    private Languages() {}

    /** Builds one analyzer from an index's settings. */
    @FunctionalInterface
    private interface Build {
        Analyzer from(Environment env, Settings settings);
    }

    private static final Map<String, Build> LANGUAGES = new TreeMap<>();
    private static final Map<String, Build> PLAIN = new TreeMap<>();

    static {
        stemmed("arabic", ArabicAnalyzer.getDefaultStopSet(), ArabicAnalyzer::new);
        stemmed("armenian", ArmenianAnalyzer.getDefaultStopSet(), ArmenianAnalyzer::new);
        stemmed("basque", BasqueAnalyzer.getDefaultStopSet(), BasqueAnalyzer::new);
        stemmed("bengali", BengaliAnalyzer.getDefaultStopSet(), BengaliAnalyzer::new);
        stemmed("brazilian", BrazilianAnalyzer.getDefaultStopSet(), BrazilianAnalyzer::new);
        stemmed("bulgarian", BulgarianAnalyzer.getDefaultStopSet(), BulgarianAnalyzer::new);
        stemmed("catalan", CatalanAnalyzer.getDefaultStopSet(), CatalanAnalyzer::new);
        stemmed("czech", CzechAnalyzer.getDefaultStopSet(), CzechAnalyzer::new);
        stemmed("danish", DanishAnalyzer.getDefaultStopSet(), DanishAnalyzer::new);
        stemmed("dutch", DutchAnalyzer.getDefaultStopSet(), DutchAnalyzer::new);
        stemmed("english", EnglishAnalyzer.getDefaultStopSet(), EnglishAnalyzer::new);
        stemmed("estonian", EstonianAnalyzer.getDefaultStopSet(), EstonianAnalyzer::new);
        stemmed("finnish", FinnishAnalyzer.getDefaultStopSet(), FinnishAnalyzer::new);
        stemmed("french", FrenchAnalyzer.getDefaultStopSet(), FrenchAnalyzer::new);
        stemmed("galician", GalicianAnalyzer.getDefaultStopSet(), GalicianAnalyzer::new);
        stemmed("german", GermanAnalyzer.getDefaultStopSet(), GermanAnalyzer::new);
        stemmed("hindi", HindiAnalyzer.getDefaultStopSet(), HindiAnalyzer::new);
        stemmed("hungarian", HungarianAnalyzer.getDefaultStopSet(), HungarianAnalyzer::new);
        stemmed("indonesian", IndonesianAnalyzer.getDefaultStopSet(), IndonesianAnalyzer::new);
        stemmed("irish", IrishAnalyzer.getDefaultStopSet(), IrishAnalyzer::new);
        stemmed("italian", ItalianAnalyzer.getDefaultStopSet(), ItalianAnalyzer::new);
        stemmed("latvian", LatvianAnalyzer.getDefaultStopSet(), LatvianAnalyzer::new);
        stemmed("lithuanian", LithuanianAnalyzer.getDefaultStopSet(), LithuanianAnalyzer::new);
        stemmed("norwegian", NorwegianAnalyzer.getDefaultStopSet(), NorwegianAnalyzer::new);
        stemmed("portuguese", PortugueseAnalyzer.getDefaultStopSet(), PortugueseAnalyzer::new);
        stemmed("romanian", RomanianAnalyzer.getDefaultStopSet(), RomanianAnalyzer::new);
        stemmed("russian", RussianAnalyzer.getDefaultStopSet(), RussianAnalyzer::new);
        stemmed("sorani", SoraniAnalyzer.getDefaultStopSet(), SoraniAnalyzer::new);
        stemmed("spanish", SpanishAnalyzer.getDefaultStopSet(), SpanishAnalyzer::new);
        stemmed("swedish", SwedishAnalyzer.getDefaultStopSet(), SwedishAnalyzer::new);
        stemmed("turkish", TurkishAnalyzer.getDefaultStopSet(), TurkishAnalyzer::new);
        // These read no stem_exclusion in the full distribution either.
        stopped("cjk", CJKAnalyzer.getDefaultStopSet(), CJKAnalyzer::new);
        stopped("greek", GreekAnalyzer.getDefaultStopSet(), GreekAnalyzer::new);
        stopped("persian", PersianAnalyzer.getDefaultStopSet(), PersianAnalyzer::new);
        stopped("thai", ThaiAnalyzer.getDefaultStopSet(), ThaiAnalyzer::new);
        // The core knows these by name; here they also become usable as a "type".
        PLAIN.put("keyword", (env, settings) -> new KeywordAnalyzer());
        PLAIN.put("simple", (env, settings) -> new SimpleAnalyzer());
        PLAIN.put("stop", (env, settings) -> new StopAnalyzer(
            Analysis.parseStopWords(env, settings, EnglishAnalyzer.ENGLISH_STOP_WORDS_SET)));
        PLAIN.put("whitespace", (env, settings) -> new WhitespaceAnalyzer());
    }

    private static void stemmed(
        String name, CharArraySet stopWords, BiFunction<CharArraySet, CharArraySet, Analyzer> make) {
        LANGUAGES.put(name, (env, settings) -> make.apply(
            Analysis.parseStopWords(env, settings, stopWords),
            Analysis.parseStemExclusion(settings, CharArraySet.EMPTY_SET)));
    }

    private static void stopped(
        String name, CharArraySet stopWords, Function<CharArraySet, Analyzer> make) {
        LANGUAGES.put(name, (env, settings) -> make.apply(
            Analysis.parseStopWords(env, settings, stopWords)));
    }

    static Map<String, AnalysisProvider<AnalyzerProvider<? extends Analyzer>>> providers() {
        Map<String, AnalysisProvider<AnalyzerProvider<? extends Analyzer>>> all = new TreeMap<>();
        LANGUAGES.forEach((name, build) -> all.put(name, provider(build)));
        PLAIN.forEach((name, build) -> all.put(name, provider(build)));
        return all;
    }

    private static AnalysisProvider<AnalyzerProvider<? extends Analyzer>> provider(Build build) {
        return (index, env, name, settings) -> {
            Analyzer analyzer = build.from(env, settings);
            return new AbstractIndexAnalyzerProvider<>(name) {
                @Override
                public Analyzer get() {
                    return analyzer;
                }
            };
        };
    }

    /**
     * One shared instance of each for indices that name it without settings of their own; without
     * these every index would build all of them. The core has its own for the plain ones.
     */
    static List<PreBuiltAnalyzerProviderFactory> preBuilt() {
        List<PreBuiltAnalyzerProviderFactory> all = new ArrayList<>();
        LANGUAGES.forEach((name, build) -> all.add(new PreBuiltAnalyzerProviderFactory(
            name, CachingStrategy.LUCENE, () -> build.from(null, Settings.EMPTY))));
        return all;
    }
}
