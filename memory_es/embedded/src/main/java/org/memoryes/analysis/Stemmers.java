package org.memoryes.analysis;

import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.ar.ArabicStemFilter;
import org.apache.lucene.analysis.bg.BulgarianStemFilter;
import org.apache.lucene.analysis.bn.BengaliStemFilter;
import org.apache.lucene.analysis.br.BrazilianStemFilter;
import org.apache.lucene.analysis.ckb.SoraniStemFilter;
import org.apache.lucene.analysis.cz.CzechStemFilter;
import org.apache.lucene.analysis.de.GermanLightStemFilter;
import org.apache.lucene.analysis.de.GermanMinimalStemFilter;
import org.apache.lucene.analysis.el.GreekStemFilter;
import org.apache.lucene.analysis.en.EnglishMinimalStemFilter;
import org.apache.lucene.analysis.en.EnglishPossessiveFilter;
import org.apache.lucene.analysis.en.KStemFilter;
import org.apache.lucene.analysis.en.PorterStemFilter;
import org.apache.lucene.analysis.es.SpanishLightStemFilter;
import org.apache.lucene.analysis.es.SpanishPluralStemFilter;
import org.apache.lucene.analysis.fa.PersianStemFilter;
import org.apache.lucene.analysis.fi.FinnishLightStemFilter;
import org.apache.lucene.analysis.fr.FrenchLightStemFilter;
import org.apache.lucene.analysis.fr.FrenchMinimalStemFilter;
import org.apache.lucene.analysis.gl.GalicianMinimalStemFilter;
import org.apache.lucene.analysis.gl.GalicianStemFilter;
import org.apache.lucene.analysis.hi.HindiStemFilter;
import org.apache.lucene.analysis.hu.HungarianLightStemFilter;
import org.apache.lucene.analysis.id.IndonesianStemFilter;
import org.apache.lucene.analysis.it.ItalianLightStemFilter;
import org.apache.lucene.analysis.lv.LatvianStemFilter;
import org.apache.lucene.analysis.no.NorwegianLightStemFilter;
import org.apache.lucene.analysis.no.NorwegianLightStemFilterFactory;
import org.apache.lucene.analysis.no.NorwegianMinimalStemFilter;
import org.apache.lucene.analysis.no.NorwegianMinimalStemFilterFactory;
import org.apache.lucene.analysis.pt.PortugueseLightStemFilter;
import org.apache.lucene.analysis.pt.PortugueseMinimalStemFilter;
import org.apache.lucene.analysis.pt.PortugueseStemFilter;
import org.apache.lucene.analysis.ru.RussianLightStemFilter;
import org.apache.lucene.analysis.snowball.SnowballFilter;
import org.apache.lucene.analysis.sv.SwedishLightStemFilter;
import org.elasticsearch.common.settings.Settings;
import org.tartarus.snowball.SnowballStemmer;
import org.tartarus.snowball.ext.ArmenianStemmer;
import org.tartarus.snowball.ext.BasqueStemmer;
import org.tartarus.snowball.ext.CatalanStemmer;
import org.tartarus.snowball.ext.DanishStemmer;
import org.tartarus.snowball.ext.DutchStemmer;
import org.tartarus.snowball.ext.EnglishStemmer;
import org.tartarus.snowball.ext.EstonianStemmer;
import org.tartarus.snowball.ext.FinnishStemmer;
import org.tartarus.snowball.ext.FrenchStemmer;
import org.tartarus.snowball.ext.GermanStemmer;
import org.tartarus.snowball.ext.HungarianStemmer;
import org.tartarus.snowball.ext.IrishStemmer;
import org.tartarus.snowball.ext.ItalianStemmer;
import org.tartarus.snowball.ext.LithuanianStemmer;
import org.tartarus.snowball.ext.NorwegianStemmer;
import org.tartarus.snowball.ext.PortugueseStemmer;
import org.tartarus.snowball.ext.RomanianStemmer;
import org.tartarus.snowball.ext.RussianStemmer;
import org.tartarus.snowball.ext.SerbianStemmer;
import org.tartarus.snowball.ext.SpanishStemmer;
import org.tartarus.snowball.ext.SwedishStemmer;
import org.tartarus.snowball.ext.TurkishStemmer;

/** What the {@code stemmer} token filter can be: its {@code language} setting names one of these. */
final class Stemmers {

    private Stemmers() {}

    private static final Map<String, Function<TokenStream, TokenStream>> BY_NAME = new TreeMap<>();

    static {
        add("arabic", ArabicStemFilter::new);
        add("bengali", BengaliStemFilter::new);
        add("brazilian", BrazilianStemFilter::new);
        add("bulgarian", BulgarianStemFilter::new);
        add("czech", CzechStemFilter::new);
        add("english", PorterStemFilter::new);
        add("porter", PorterStemFilter::new);
        add("kstem", KStemFilter::new);
        addBothSpellings("light_english", KStemFilter::new);
        addBothSpellings("minimal_english", EnglishMinimalStemFilter::new);
        addBothSpellings("possessive_english", EnglishPossessiveFilter::new);
        addBothSpellings("light_finnish", FinnishLightStemFilter::new);
        addBothSpellings("light_french", FrenchLightStemFilter::new);
        addBothSpellings("minimal_french", FrenchMinimalStemFilter::new);
        add("galician", GalicianStemFilter::new);
        add("minimal_galician", GalicianMinimalStemFilter::new);
        addBothSpellings("light_german", GermanLightStemFilter::new);
        addBothSpellings("minimal_german", GermanMinimalStemFilter::new);
        add("greek", GreekStemFilter::new);
        add("hindi", HindiStemFilter::new);
        addBothSpellings("light_hungarian", HungarianLightStemFilter::new);
        add("indonesian", IndonesianStemFilter::new);
        addBothSpellings("light_italian", ItalianLightStemFilter::new);
        add("latvian", LatvianStemFilter::new);
        addBothSpellings("light_norwegian", NorwegianLightStemFilter::new);
        addBothSpellings("minimal_norwegian", NorwegianMinimalStemFilter::new);
        // Lucene keeps the constant for Nynorsk to itself; its factories take the name.
        addBothSpellings("light_nynorsk", in ->
            new NorwegianLightStemFilterFactory(nynorsk()).create(in));
        addBothSpellings("minimal_nynorsk", in ->
            new NorwegianMinimalStemFilterFactory(nynorsk()).create(in));
        add("persian", PersianStemFilter::new);
        addBothSpellings("light_portuguese", PortugueseLightStemFilter::new);
        addBothSpellings("minimal_portuguese", PortugueseMinimalStemFilter::new);
        add("portuguese_rslp", PortugueseStemFilter::new);
        addBothSpellings("light_russian", RussianLightStemFilter::new);
        add("sorani", SoraniStemFilter::new);
        addBothSpellings("light_spanish", SpanishLightStemFilter::new);
        add("spanish_plural", SpanishPluralStemFilter::new);
        addBothSpellings("light_swedish", SwedishLightStemFilter::new);
        snowball("armenian", ArmenianStemmer::new);
        snowball("basque", BasqueStemmer::new);
        snowball("catalan", CatalanStemmer::new);
        snowball("danish", DanishStemmer::new);
        snowball("dutch", DutchStemmer::new);
        snowball("estonian", EstonianStemmer::new);
        snowball("finnish", FinnishStemmer::new);
        snowball("french", FrenchStemmer::new);
        snowball("german", GermanStemmer::new);
        snowball("hungarian", HungarianStemmer::new);
        snowball("irish", IrishStemmer::new);
        snowball("italian", ItalianStemmer::new);
        snowball("lithuanian", LithuanianStemmer::new);
        snowball("norwegian", NorwegianStemmer::new);
        snowball("porter2", EnglishStemmer::new);
        snowball("portuguese", PortugueseStemmer::new);
        snowball("romanian", RomanianStemmer::new);
        snowball("russian", RussianStemmer::new);
        snowball("serbian", SerbianStemmer::new);
        snowball("spanish", SpanishStemmer::new);
        snowball("swedish", SwedishStemmer::new);
        snowball("turkish", TurkishStemmer::new);
    }

    private static void add(String name, Function<TokenStream, TokenStream> make) {
        BY_NAME.put(name, make);
    }

    /** Accepts {@code light_english} and {@code lightEnglish}; names are compared without case. */
    private static void addBothSpellings(String name, Function<TokenStream, TokenStream> make) {
        add(name, make);
        add(name.replace("_", ""), make);
    }

    private static void snowball(String name, Supplier<SnowballStemmer> stemmer) {
        add(name, in -> new SnowballFilter(in, stemmer.get()));
    }

    private static Map<String, String> nynorsk() {
        // The factories remove what they have read, so each call needs a map that can change.
        return new TreeMap<>(Map.of("variant", "nn"));
    }

    static Function<TokenStream, TokenStream> read(Settings settings) {
        String name = settings.get("language", settings.get("name", "porter"));
        Function<TokenStream, TokenStream> make = BY_NAME.get(name.toLowerCase(Locale.ROOT));
        if (make == null) {
            throw new IllegalArgumentException("Invalid stemmer specified: " + name);
        }
        return make;
    }
}
