// needle_grammar.cpp -- see needle_grammar.h.
#include "cli/bench/needle_grammar.h"

namespace braid::cli {
namespace {

using Words = std::string_view[];

constexpr Words kProsePeople = {
    "the baker",          "the old teacher",  "a young painter", "the postman",
    "my neighbour",       "the ferryman",     "the gardener",    "a retired sailor",
    "the librarian",      "the clockmaker",   "their cousin",    "the night nurse",
    "a travelling cook",  "the shepherd",     "the piano tuner", "the surveyor",
    "the village doctor", "a tall stranger",  "the bookbinder",  "the beekeeper",
    "her uncle",          "the train driver", "a quiet student", "the glassblower",
    "the miller",         "the inspector",    "the weaver",      "an impatient clerk",
    "the innkeeper",      "the carpenter"};
constexpr Words kProseDeeds = {
    "repaired the fence",       "counted the empty jars",      "painted the shutters",
    "carried the ladder home",  "wrote a long letter",         "closed the heavy gate",
    "sorted the old maps",      "swept the stone steps",       "tasted the plum soup",
    "waited for the last bus",  "watched the clouds pass",     "folded the wet sheets",
    "lit the iron stove",       "planted a row of beans",      "mended a torn sail",
    "read the weather report",  "sharpened the pruning knife", "polished the copper pans",
    "asked about the harvest",  "forgot the umbrella",         "borrowed a wheelbarrow",
    "bought a basket of pears", "searched for the spare lamp", "tuned the small radio",
    "fed the neighbour's cat",  "told the story of the flood", "measured the width of the door",
    "packed the wooden crates", "oiled the squeaking hinges",  "drew a plan of the cellar"};
constexpr Words kProsePlaces = {
    "behind the mill",         "near the harbour wall",   "at the edge of the wood",
    "in the narrow lane",      "under the chestnut tree", "beside the canal",
    "on the upper terrace",    "in front of the bakery",  "along the river path",
    "in the back room",        "by the railway bridge",   "across the market square",
    "at the foot of the hill", "inside the greenhouse",   "above the stables",
    "next to the dry fountain"};
constexpr Words kProseTimes = {
    "in the morning",         "after lunch",           "before the rain came",
    "late in the evening",    "on the first warm day", "at the end of the week",
    "during the long winter", "shortly before dawn",   "when the bells rang",
    "in early autumn",        "that same afternoon",   "a few days later",
    "once the fog had gone",  "while the kettle sang"};
constexpr Words kProseMoods = {"slowly",    "gladly",     "without a word", "with great care",
                               "hurriedly", "as usual",   "rather badly",   "for no clear reason",
                               "patiently", "in silence", "with a smile",   "against all advice"};
constexpr Words kProseThings = {
    "the wind",       "the smell of fresh bread", "the old road",     "the sound of the saw",
    "the grey light", "the garden wall",          "the narrow stair", "the winter market",
    "the tall grass", "the wooden bridge",        "the summer heat",  "the row of poplars",
    "the steep roof", "the distant bell",         "the muddy field",  "the kitchen window"};
constexpr Words kProseStates = {
    "seemed older than the town itself", "had changed very little over the years",
    "reminded them of earlier summers",  "was the first thing that visitors noticed",
    "kept the children awake",           "gave the whole street a cheerful look",
    "made every errand a little longer", "was hardly worth a second glance",
    "pleased nearly everybody",          "never appeared on any map",
    "belonged to the quiet season",      "could be felt in every room"};
constexpr Words kProseClauses = {
    "although the path was steep",      "because the shop had closed early",
    "while the others played cards",    "so that the dog would stop barking",
    "as if there were plenty of time",  "until the lamps were lit",
    "since the roof had begun to leak", "even though the water was cold",
    "before the guests arrived",        "where the two streams meet",
    "unless the road was blocked",      "after a short discussion"};
constexpr Words kProseRemarks = {"nobody asked why",
                                 "that was enough for one day",
                                 "the rest could wait",
                                 "it hardly mattered any more",
                                 "everyone agreed at once",
                                 "the answer was obvious",
                                 "there was still some tea left",
                                 "the dog slept through it all",
                                 "no one kept count",
                                 "it had always been done that way"};
// The first word of a sentence has a capital letter, so people stand behind another word.
constexpr Words kProsePatterns = {
    "In those days $p $d $l.",
    "On such mornings $p $d $m, $c.",
    "Now and then $p $d; $r.",
    "According to the notes, $p $d $t.",
    "Of course $p $d $l, and $q $d $m.",
    "It was said that $p $d $t, $c.",
    "Some time ago $p $d $l.",
    "Meanwhile $p and $q sat $l $t.",
    "For years $s $v, $c.",
    "To most people $s $v.",
    "Even $t, $s $v.",
    "As far as anyone knew, $p $d $m $t.",
    "Somewhere $l, $p $d, and $r.",
    "Then $p met $q $l.",
    "Then $p $d.",
    "Afterwards $p $d $m, but $r.",
    "Either $p or $q $d $t.",
    "Perhaps $s $v; perhaps $r.",
    "Not far away, $l, $p $d $m.",
    "Whenever $p $d, $q laughed $m.",
    "Once again $p $d $c.",
    "In the end, $r.",
};

constexpr Words kFrenchWho = {"La boulangère",  "Le vieux pêcheur", "Ma grand-mère", "Le facteur",
                              "L'institutrice", "Notre voisin",     "Le jardinier",  "Une élève"};
constexpr Words kFrenchDoes = {
    "répare la clôture",        "ferme les fenêtres de l'école", "prépare une crème légère",
    "cherche ses clés égarées", "lit le journal à voix haute",   "goûte les pêches mûres",
    "écoute la forêt",          "plie les draps mouillés"};
constexpr Words kFrenchWhen = {"dès l'aube", "après le dîner", "près du marché",  "malgré la gelée",
                               "chaque été", "en février",     "sans se presser", "là-bas"};
constexpr Words kFrenchPatterns = {"$a $b $c.", "$a $b, puis $b $c.", "$a $b $c, et tout va bien.",
                                   "$a $b."};

constexpr Words kGermanWho = {"Die Bäckerin",  "Der alte Müller", "Unsere Nachbarin", "Der Schäfer",
                              "Die Schülerin", "Mein Großvater",  "Der Uhrmacher",    "Die Ärztin"};
constexpr Words kGermanDoes = {"öffnet", "prüft", "streicht", "verschließt", "säubert", "zählt"};
constexpr Words kGermanWhat = {"die grüne Tür",       "das schöne Fass",      "die großen Körbe",
                               "den Schlüsselbund",   "die Gläser",           "das Gewächshaus",
                               "die Brücke am Fluss", "den Ofen in der Küche"};
constexpr Words kGermanWhen = {"am frühen Morgen", "gegen fünf",        "im März",
                               "nach der Übung",   "während der Ernte", "in aller Stille"};
constexpr Words kGermanPatterns = {"$a $b $d $c.", "$a $b $c, und zwar $d.", "$a $b $c."};

constexpr Words kSpanishWho = {"La señora Muñoz", "El carpintero", "Mi tío Andrés", "El capitán",
                               "La bióloga",      "Aquel niño",    "El panadero",   "La pianista"};
constexpr Words kSpanishDoes = {
    "limpia el balcón", "abre el cajón más pequeño", "dibuja un árbol",    "compra azúcar y jamón",
    "cuida el jardín",  "escribe una canción",       "mide la habitación", "sube a la montaña"};
constexpr Words kSpanishWhen = {"cada mañana",     "después de la reunión", "todavía",
                                "en otoño",        "según la tradición",    "junto al río",
                                "sin ningún apuro"};
constexpr Words kSpanishPatterns = {"$a $b $c.", "¿Por qué $b $c? Nadie lo sabe.",
                                    "¡Qué día! $a $b.", "$a $b y luego $b $c."};

constexpr Words kPolishWho = {"Stary młynarz", "Nasza sąsiadka", "Mój dziadek",
                              "Młoda lekarka", "Ogrodnik",       "Rybak z Łodzi"};
constexpr Words kPolishDoes = {"naprawia łódkę", "czyści duży piec",     "otwiera żółtą bramę",
                               "liczy gęsi",     "zbiera świeże jabłka", "czyta dłuższą książkę"};
constexpr Words kPolishWhen = {"o świcie",       "każdej środy",     "wśród drzew",
                               "późną jesienią", "przed śniadaniem", "nad jeziorem"};
constexpr Words kTurkishWho = {"Yaşlı öğretmen", "Komşumuz", "Küçük çocuk",
                               "Balıkçı",        "Fırıncı",  "Genç mühendis"};
constexpr Words kTurkishWhat = {"eski köprüyü onarıyor", "bahçeyi suluyor", "kapıyı boyuyor",
                                "üzümleri topluyor",     "çayı içiyor",     "mektubu yazıyor"};
constexpr Words kTurkishWhen = {"sabahleyin", "öğleden sonra", "göl kıyısında",
                                "çarşıda",    "kışın",         "sessizce"};

constexpr Words kRussianWho = {"Старый мельник", "Наш сосед",   "Учительница", "Молодой врач",
                               "Садовник",       "Моя бабушка", "Почтальон",   "Сторож"};
constexpr Words kRussianDoes = {"чинит забор",           "открывает тяжёлые ворота",
                                "читает длинное письмо", "собирает спелые яблоки",
                                "считает пустые ящики",  "красит ставни",
                                "ждёт последний поезд",  "варит крепкий чай"};
constexpr Words kRussianWhen = {"рано утром",         "после дождя", "у реки",
                                "каждую осень",       "не спеша",    "в конце недели",
                                "за старой мельницей"};
constexpr Words kRussianPatterns = {"$a $b $c.", "$a $b, а потом $b.", "Говорят, что $c всё тихо.",
                                    "$a опять $b $c."};

constexpr Words kChineseWho = {"老师", "我们的邻居", "年轻的医生", "船夫",
                               "花匠", "邮递员",     "那位画家",   "面包师"};
constexpr Words kChineseWhen = {"清晨", "午饭后", "雨停以后", "每年秋天", "周末", "天黑之前"};
constexpr Words kChineseWhere = {"河边", "老磨坊后面", "集市上", "图书馆里", "山脚下", "花园里"};
constexpr Words kChineseDoes = {"修理旧篱笆",   "数空罐子",   "写一封长信", "等最后一班车",
                                "摘成熟的苹果", "读天气预报", "擦洗石阶",   "给窗户刷漆"};
constexpr Words kChinesePatterns = {"$a$b在$c$d。", "$b，$a常常在$c$d。",
                                    "听说$a$b$d，大家都不着急。", "$a在$c$d，然后又$d。"};

constexpr Words kJapaneseWho = {"先生", "隣の人",     "若い医者", "パン屋の主人",
                                "庭師", "郵便屋さん", "時計職人", "祖母"};
constexpr Words kJapaneseWhen = {"朝早く",     "昼食のあと", "雨がやんでから",
                                 "秋になると", "週末に",     "夜明け前に"};
constexpr Words kJapaneseWhere = {"川辺で",   "古い水車小屋の裏で", "市場で",
                                  "図書館で", "丘のふもとで",       "温室で"};
constexpr Words kJapaneseDoes = {"柵を直した",         "長い手紙を書いた",   "熟したリンゴを集めた",
                                 "石段を掃いた",       "最後のバスを待った", "ストーブに火をつけた",
                                 "古い地図を整理した", "コーヒーを飲んだ"};
constexpr Words kJapanesePatterns = {"$aは$b、$c$d。", "$b、$aは$d。",
                                     "$aが$c$dことは、誰も知らない。", "$c$dのは$aだった。"};

constexpr Words kEmojiSigns = {"🌧️",     "🚲",       "🍞",       "🐝", "⛵", "🌻",
                               "📚",           "🕰️", "🧺",    "🐑", "🍐", "🔧",
                               "👩‍🌾", "🎻",       "🏞️", "☕", "🚂", "🪜"};
constexpr Words kEmojiWords = {"ok", "señal", "später", "да", "好", "はい", "naïve", "oui"};
constexpr Words kEmojiPatterns = {"$a$a $b $a.", "$b: $a → $a → $a.", "$a $a $a!", "$b $a, $b $a."};

constexpr std::string_view kThreePart[] = {"$a $c $b.", "$a $b $c.", "$a $b."};
constexpr std::string_view kTurkishPart[] = {"$a $c $b.", "$c $a $b.", "$a $b."};

}  // namespace

const NeedleGrammar& prose_grammar() {
  static const NeedleGrammar kGrammar = {kProsePatterns,
                                         {{'p', kProsePeople},
                                          {'q', kProsePeople},
                                          {'d', kProseDeeds},
                                          {'l', kProsePlaces},
                                          {'t', kProseTimes},
                                          {'m', kProseMoods},
                                          {'s', kProseThings},
                                          {'v', kProseStates},
                                          {'c', kProseClauses},
                                          {'r', kProseRemarks}}};
  return kGrammar;
}

std::span<const NeedleGrammar> multilingual_grammars() {
  static const NeedleGrammar kGrammars[] = {
      {kFrenchPatterns, {{'a', kFrenchWho}, {'b', kFrenchDoes}, {'c', kFrenchWhen}}},
      {kGermanPatterns,
       {{'a', kGermanWho}, {'b', kGermanDoes}, {'c', kGermanWhat}, {'d', kGermanWhen}}},
      {kSpanishPatterns, {{'a', kSpanishWho}, {'b', kSpanishDoes}, {'c', kSpanishWhen}}},
      {kThreePart, {{'a', kPolishWho}, {'b', kPolishDoes}, {'c', kPolishWhen}}},
      {kTurkishPart, {{'a', kTurkishWho}, {'b', kTurkishWhat}, {'c', kTurkishWhen}}},
      {kRussianPatterns, {{'a', kRussianWho}, {'b', kRussianDoes}, {'c', kRussianWhen}}},
      {kChinesePatterns,
       {{'a', kChineseWho}, {'b', kChineseWhen}, {'c', kChineseWhere}, {'d', kChineseDoes}},
       ""},
      {kJapanesePatterns,
       {{'a', kJapaneseWho}, {'b', kJapaneseWhen}, {'c', kJapaneseWhere}, {'d', kJapaneseDoes}},
       ""},
      {kEmojiPatterns, {{'a', kEmojiSigns}, {'b', kEmojiWords}}}};
  return kGrammars;
}

}  // namespace braid::cli
