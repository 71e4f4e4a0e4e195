"""Words and names for generated questions: everyday words, words of Python's reference, names, and made-up words.

Everything is built from compact lists and from the language reference that a Python installation contains
(`pydoc_data`). A question's item, not this module, decides whether a word is for training or held out.
"""

import random
import re
from functools import cache

from nanogka.data.embedded import library
from tasks.items import name_as_typed

CONSONANTS, VOWELS = "bdfgklmnprst", "aeiou"
ONSETS = (
    "b bl br c ch cl cr d dr dw f fl fr g gh gl gn gr h j k kn l m n p ph pl pr ps qu r rh s sc sch scr sh sk sl sm sn "
    "sp spl spr squ st str sw t th thr tr tw v w wh wr x y z "
)
NUCLEI = "a e i o u y ai au aw ay ea ee ei eo eu ew ey ia ie io oa oi oo ou ow oy ua ue ui"
CODAS = (
    " b bt ck d dge f ff ft g gh ght gue k l ld lf lk ll lm lt m mb me mn mp n nce nd ng nk nt p pt que r rd rk rm "
    "rn rt s se sk ss st t tch te th the thm tle tt tz ve x z ze zz ad age an ar ard ate ed en er est ess ful ic id "
    "ily in ing ion is ish ist ite ive ize ler less ly ment ness nic ock ol on ous rad ser so tor ty um us"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MADE_UP_NAMES = 0.45  # share: few users have a name of the list, and made-up ones teach the model to copy any name
SHORTEST, LONGEST = 3, 10  # letters of a word; more than are promised, so that the promised ones are easy
EVERYDAY = """
    able above add afraid after again age air all alone also always and angel angry animal answer ant any apple
    april arm army art ask aunt autumn away baby back bad bag ball banana band bank bark barn basket bath beach
    bean bear beard beautiful bed bee beer before bell belt bench berry best better big bike bird birth bitter
    black blanket blood blow blue board boat body bone book boot born boss bottle bottom bowl box boy brain
    branch brave bread break breath brick bridge bright bring broken brother brown brush bucket build bus bush
    busy butter button buy cake call calm camel camera camp candle candy cap car card care carpet carrot cart
    castle cat catch cave chair chalk cheese cherry chess chest chicken child chin church circle city class
    clean clear clever climb clock close cloth cloud clown coal coast coat coffee coin cold color comb come cook
    cool corn corner cotton couch cough count cousin cover cow crab crazy cream crown cry cup curly curtain cut
    dad dance danger dark daughter day dead dear deep deer desert desk dinner dirty dish doctor dog doll dolphin
    donkey door dragon draw dream dress drink drive drop drum dry duck dust eagle ear early earth east easy eat
    egg eight elbow elephant empty enemy engine evening every eye face fact fair fall family famous far farm
    fast fat father fear feather feel fence fever few field fight finger fire first fish five flag flame flat
    floor flour flower flute fly fog food foot forest fork forty four fox fresh friday friend frog fruit full
    fun funny game garden garlic gate ghost giant giraffe girl give glad glass glove glue goat gold good goose
    grandma grape grass gray great green ground group grow guess guest guitar hair half hall hammer hand happy
    hard hat hate head health hear heart heat heavy hello help hen hero hide high hill hit hold hole home honey
    hood hope horn horse hospital hot hotel hour house hug human hundred hungry hunt hurry hurt ice idea ill
    insect iron island jacket jam jar jaw jelly job joke juice july jump june jungle kettle key kick kid kind
    king kiss kitchen kite kitten knee knife knock know ladder lady lake lamb lamp land large last late laugh
    lazy leaf learn leg lemon lemur lesson letter library life light like lion lip listen little lizard loaf
    lock long look loud love low luck lunch machine mad magic mail make man map march market meal meat medicine
    meet melon metal middle milk mind minute mirror miss monday money monkey month moon morning mother mountain
    mouse mouth move movie much music name narrow near neck needle nest never new nice night nine noise north
    nose nothing number nurse nut ocean often oil old onion open orange oven owl page pain paint pair palace pan
    pants paper parent park parrot party path peace peach peanut pear pen pencil penguin people pepper phone
    photo piano picnic picture pie pig pillow pilot pink pirate pizza plane planet plant plate play please plum
    pocket poem police pony pool poor potato pretty price prince princess pumpkin pupil puppy purple queen
    question quick quiet rabbit radio rain rainbow read ready red rice rich ride right ring river road robot
    rock roof room rope rose round ruler run sad salad salt sand saturday sausage say scarf school science
    scissors sea season second secret see seed seven shadow shape sharp sheep ship shirt shoe shop short
    shoulder shower sick silver simple sing sister six skin skirt sky sleep slow small smart smell smile smoke
    snail snake snow soap soccer sock sofa soft son song soon sorry soup sour south space spider spoon sport
    spring square squirrel stair star start station stone stop store storm story strange straw street strong
    student sugar summer sun sunday sweet swim sword table tail talk tall tea teacher team tear ten tennis tent
    thank thief thin think thirsty thousand three throat thumb thunder thursday ticket tiger time tiny tired
    toast today toe together tomato tomorrow tongue tooth tower town toy train travel tree triangle trip
    trousers truck true trumpet tuesday tulip turkey turtle twelve twenty two ugly umbrella uncle under uniform
    vase village violin visit voice wait walk wall wallet warm wash watch water weather week welcome west wet
    whale wheat wheel when where white wide wife wild win wind window wine wing winter wise wolf woman wonder
    wood wool word work world worm write wrong yard year yellow yes young zebra zero
"""
NAMES = """
    Aaron Abby Abdul Abigail Ada Adam Adele Adrian Agnes Ahmed Aisha Akira Alan Albert Alex Alfred Alice Alina
    Amanda Amber Amelia Amir Amy Ana Andre Andrea Andrew Angela Anita Anja Ann Anna Anne Anton Antonio Anya
    Arjun Arthur Asha Astrid Ava Axel Barbara Beatrice Ben Benjamin Berta Beth Bill Bob Boris Brian Bruno Camila
    Carl Carla Carlos Carmen Carol Caroline Cathy Cecilia Chen Chloe Chris Clara Claire Claudia Colin Connor Dan
    Dana Daniel Daria David Dean Deborah Denise Dennis Diana Diego Dmitri Dora Doris Dylan Eddie Edgar Edith
    Elena Elias Elisa Ella Ellen Elsa Emil Emily Emma Enzo Eric Erika Erin Ethan Eva Eve Evelyn Fatima Felix
    Fiona Frank Frida Fritz Gabriel Gary George Georgia Gerda Gina Grace Greg Greta Guido Gustav Hana Hanna Hans
    Harold Harry Hassan Hector Heidi Helen Helena Henry Hiro Hugo Ian Ibrahim Ida Igor Ines Ingrid Irene Iris
    Isaac Isabel Ivan Jack Jacob Jade James Jan Jane Jason Javier Jean Jenny Jessica Jim Jing Joan Joe Johanna
    John Jonas Jose Joseph Josh Juan Judith Julia Julian Jun Kai Karen Karim Karin Karl Kate Katie Kenji Kevin
    Kim Kira Klaus Kofi Kurt Lara Lars Laura Lea Lee Lena Leo Leon Liam Lily Lina Linda Lisa Liz Logan Lola
    Louis Louise Luca Lucas Lucia Lucy Luis Luke Luna Magda Maja Marc Marco Margaret Maria Marie Marina Mark
    Marta Martin Mary Mateo Matt Max Maya Megan Mehmet Mei Mia Michael Mike Mila Milan Miles Miriam Mohamed
    Molly Monica Nadia Naomi Natalie Nathan Neil Nick Nicole Niels Nina Noah Nora Oleg Olga Oliver Olivia Omar
    Oscar Otto Pablo Patricia Paul Paula Pavel Pedro Peter Petra Philip Pia Pierre Priya Quinn Rachel Rafael
    Rahul Raj Ralph Ravi Ray Rebecca Rita Robert Robin Rosa Rose Ruby Ruth Ryan Sally Sam Samir Sandra Sara
    Sarah Scott Sean Selma Sergei Simon Sofia Sonia Sophie Stefan Stella Steve Sue Susan Sven Tamara Tanya Tara
    Ted Teresa Theo Thomas Tim Tina Tobias Tom Tony Tracy Uma Ursula Valerie Vera Vicky Victor Vincent Viola
    Wanda Walter Wei Will Xavier Yan Yara Yusuf Yuki Yuri Yvonne Zara Zoe
    Agnès Aloïs Amélie André Andrés Ángel Anaïs Åsa Beyoncé Björk Çelik Chloé Désirée Élodie Émile Esmé François
    Françoise Gaël Günter Gösta Hélène Håkan Ibañez Inès Iñigo Jérôme Jiří João Jörg Joël José Jürgen Käthe León
    Łucja Lázló Lôra Mária Märta Maïa Mónica Müller Nikolić Noël Núria Ömer Óscar Öykü Pelé Raúl René Renée
    Róisín Søren Siân Sinéad Sofía Tomás Tomáš Ümit Václav Véra Yiğit Zoé Zoë Žofia
"""


@cache
def real_words() -> tuple[str, ...]:
    """The everyday words, and the words of Python's language reference, of `SHORTEST` to `LONGEST` letters."""
    topics = library() / "pydoc_data" / "topics.py"
    text = topics.read_text(encoding="utf-8") if topics.is_file() else ""
    reference = re.findall(r"(?<![\w.\\])[a-z]+(?![\w(.’'])", text)
    return tuple(sorted({word for word in EVERYDAY.split() + reference if SHORTEST <= len(word) <= LONGEST}))


@cache
def everyday_words() -> tuple[str, ...]:
    """The everyday words."""
    return tuple(EVERYDAY.split())


@cache
def names() -> tuple[str, ...]:
    """First names, capitalized."""
    return tuple(NAMES.split())


def made_up_word(rng: random.Random, length: int) -> str:
    """A word of alternating consonants and vowels."""
    return "".join(rng.choice(VOWELS if i % 2 else CONSONANTS) for i in range(length))


def syllables(rng: random.Random) -> str:
    """A word of one to three syllables with the letters that meet in English, such as thright or squeph."""
    parts = (rng.choice(part.split(" ")) for _ in range(rng.choice((1, 2, 2, 3))) for part in (ONSETS, NUCLEI, CODAS))
    word = "".join(parts)[:LONGEST]
    return word if len(word) >= SHORTEST else word + "ing"


def repeating_word(rng: random.Random) -> str:
    """A word with a syllable twice or three times, such as banana. Copying it letter by letter ends only with care."""
    syllable = made_up_word(rng, 2)
    word = rng.choice(("", rng.choice(LETTERS), made_up_word(rng, 2))) + syllable * rng.choice((2, 2, 3))
    return word + rng.choice(("", "", rng.choice(LETTERS)))


def crossed_word(rng: random.Random) -> str:
    """The beginning of one word and the end of another, of 4 to 10 letters.

    Such words spread the pieces that a tokenizer cuts words into more evenly than real words do. A piece that training
    never spelled cannot be spelled.
    """
    first, second = rng.choice(real_words()), rng.choice(real_words())
    start = first[: rng.randint(2, min(len(first), LONGEST - 2))]
    return start + second[-rng.randint(2, min(5, LONGEST - len(start))) :]


def any_word(rng: random.Random) -> str:
    """A word of the lists, or in three cases of ten one that does not exist."""
    kind = rng.random()
    if kind < 0.04:
        return made_up_word(rng, rng.randint(3, 7))
    if kind < 0.11:
        return repeating_word(rng)
    if kind < 0.18:
        return syllables(rng)
    if kind < 0.3:
        return crossed_word(rng)
    return rng.choice(everyday_words() if kind < 0.6 else real_words())


def any_name(rng: random.Random) -> str:
    """A name as people write it: of the list or made up, capitalized or not."""
    name = made_up_word(rng, rng.randint(4, 7)).capitalize() if rng.random() < MADE_UP_NAMES else rng.choice(names())
    return name_as_typed(name, rng)
