# A table of data: phrases from which junk pages are composed.
"""Phrases from which junk pages are composed; they were written for this purpose."""


def _phrases(text: str) -> tuple[str, ...]:
    """Split a text at the slashes between its phrases."""
    return tuple(" ".join(text.split()).split(" / "))


def _banks(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(map(_phrases, text.split("//")))


# language → openings, subjects with verbs, complements: any combination is a sentence of that language
LANGUAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "de": _banks("""
        Am frühen Morgen / Nach dem langen Winter / In unserer kleinen Stadt / Trotz des schlechten Wetters / Seit
        vielen Jahren / An jedem Sonntag / Kurz vor Mitternacht / Während der Ferien
        //
        öffnet der Bäcker / erzählt meine Großmutter von / sucht der alte Fischer nach / besuchen die Kinder /
        beschreibt die Lehrerin / bewundern viele Gäste / repariert mein Nachbar / verkauft der Händler
        //
        das Geschäft neben der Kirche / die Geschichten aus ihrer Jugend / den schönsten Garten am Fluss / das
        Museum mit den bunten Fenstern / die neue Brücke über den Fluss / den Markt auf dem großen Platz / die
        Bücher aus der alten Bibliothek / das Fahrrad mit dem roten Sattel
    """),
    "fr": _banks("""
        Chaque matin d'automne / Après le repas du soir / Dans notre petit village / Malgré la pluie froide / Depuis
        de longues années / Pendant les vacances d'été / Un peu avant minuit / Le dimanche suivant
        //
        le boulanger prépare / ma grand-mère raconte / le vieux pêcheur cherche / les enfants visitent / la
        maîtresse décrit / beaucoup de voyageurs admirent / mon voisin répare / le marchand propose
        //
        le pain que toute la rue attend / les souvenirs de sa jeunesse / le plus beau jardin de la ville / le musée
        aux fenêtres colorées / le nouveau pont sur la rivière / les fruits de la grande place / les livres de
        l'ancienne bibliothèque / la bicyclette avec une selle rouge
    """),
    "es": _banks("""
        Cada mañana de otoño / Después de la cena / En nuestro pequeño pueblo / A pesar de la lluvia / Desde hace
        muchos años / Durante las vacaciones / Poco antes de la medianoche / El domingo siguiente
        //
        el panadero prepara / mi abuela cuenta / el viejo pescador busca / los niños visitan / la maestra describe /
        muchos viajeros admiran / mi vecino arregla / el comerciante vende
        //
        el pan que espera toda la calle / los recuerdos de su juventud / el jardín más hermoso de la ciudad / el
        museo de las ventanas de colores / el puente nuevo sobre el río / las frutas de la plaza mayor / los libros
        de la antigua biblioteca / la bicicleta con el asiento rojo
    """),
    "it": _banks("""
        Ogni mattina d'autunno / Dopo la cena in famiglia / Nel nostro piccolo paese / Nonostante la pioggia / Da
        molti anni ormai / Durante le vacanze estive / Poco prima di mezzanotte / La domenica seguente
        //
        il fornaio prepara / mia nonna racconta / il vecchio pescatore cerca / i bambini visitano / la maestra
        descrive / molti viaggiatori ammirano / il mio vicino aggiusta / il mercante vende
        //
        il pane che tutta la strada aspetta / i ricordi della sua giovinezza / il giardino più bello della città /
        il museo con le finestre colorate / il nuovo ponte sopra il fiume / la frutta della piazza grande / i libri
        della vecchia biblioteca / la bicicletta con la sella rossa
    """),
    "pt": _banks("""
        Todas as manhãs de outono / Depois do jantar em família / Na nossa pequena aldeia / Apesar da chuva fria /
        Há muitos anos que / Durante as férias de verão / Pouco antes da meia-noite / No domingo seguinte
        //
        o padeiro prepara / a minha avó conta / o velho pescador procura / as crianças visitam / a professora
        descreve / muitos viajantes admiram / o meu vizinho conserta / o comerciante vende
        //
        o pão que toda a rua espera / as lembranças da sua juventude / o jardim mais bonito da cidade / o museu das
        janelas coloridas / a ponte nova sobre o rio / as frutas da praça maior / os livros da antiga biblioteca / a
        bicicleta com o assento vermelho
    """),
    "nl": _banks("""
        Elke ochtend in de herfst / Na het avondeten / In ons kleine dorp / Ondanks de koude regen / Al heel veel
        jaren / Tijdens de zomervakantie / Vlak voor middernacht / Op de volgende zondag
        //
        bakt de bakker / vertelt mijn grootmoeder over / zoekt de oude visser naar / bezoeken de kinderen /
        beschrijft de juffrouw / bewonderen veel reizigers / herstelt mijn buurman / verkoopt de koopman
        //
        het brood waar de hele straat op wacht / de verhalen uit haar jeugd / de mooiste tuin van de stad / het
        museum met de gekleurde ramen / de nieuwe brug over de rivier / het fruit op het grote plein / de boeken uit
        de oude bibliotheek / de fiets met het rode zadel
    """),
    "ru": _banks("""
        Каждое осеннее утро / После семейного ужина / В нашем маленьком городе / Несмотря на холодный дождь / Уже
        много лет подряд / Во время летних каникул / Незадолго до полуночи / В следующее воскресенье
        //
        пекарь готовит / моя бабушка вспоминает / старый рыбак ищет / дети рассматривают / учительница описывает /
        многие путешественники хвалят / мой сосед чинит / торговец продаёт
        //
        хлеб, которого ждёт вся улица / рассказы о своей молодости / самый красивый сад у реки / музей с цветными
        окнами / новый мост через реку / фрукты на большой площади / книги из старой библиотеки / велосипед с
        красным седлом
    """),
    "zh": _banks("""
        每年秋天的早晨， / 吃过晚饭以后， / 在我们的小镇上， / 虽然天气很冷， / 许多年以来， / 暑假的时候，
        / 快到半夜的时候， / 下一个星期天，
        //
        面包师准备 / 我的奶奶谈起 / 老渔夫寻找 / 孩子们参观 / 老师介绍 / 很多旅客称赞 / 我的邻居修理 / 商人出售
        //
        整条街都在等的面包 / 她年轻时候的故事 / 河边最美丽的花园 / 有彩色窗户的博物馆
        / 河上新建的大桥 / 广场上新鲜的水果 / 旧图书馆里的书籍 / 红色座位的自行车
    """),
}
BOILERPLATE = _phrases(
    """
        Home / About us / Contact / Sign in / Sign up / Log in / Register / Search / Menu / Skip to content / Back
        to top / Next page / Previous page / Read more / Share on Facebook / Share on Twitter / Follow us /
        Subscribe / Add to cart / 3 items in cart / 12 comments / 48 likes / 1,204 views / View all / Categories /
        Archives / Tags / Help / FAQ / Careers / Press / Sitemap / Accessibility / Language / Download our app / We
        use cookies to improve your experience on our site. / By continuing to browse you agree to the use of
        cookies as described in our cookie policy. / Please read our privacy policy to learn how we handle your
        data. / Your use of this website is subject to the terms of use and the privacy policy. / Please enable
        JavaScript in your browser to view this page correctly. / All rights reserved. No part of this site may be
        copied without permission. / This site uses cookies for analytics, content that fits you, and
        advertisements. / Subscribe to our newsletter and never miss an offer. / By creating an account you accept
        our terms of service and our cookie policy.
    """
)
SPAM = _phrases(
    """
        cheap / flights / hotel / deals / best / price / buy / online / discount / coupon / free / shipping / casino
        / bonus / loan / credit / insurance / mortgage / weight / loss / pills / viagra / replica / watches /
        designer / handbags / wholesale / outlet / sale / promo / code / seo / backlinks / ringtones / download /
        mp3 / lyrics / poker / slots / betting / jackpot / forex / trading / bitcoin / profit / rich / quick /
        guaranteed / miracle / diet / keto / detox / skin / cream / antiaging / whitening / dating / singles /
        webcam / chat / massage / plumber / locksmith
    """
)
SOUP = "#@%^&*()_+={}[]|\\:;<>/~`0123456789§¤¬¦"
