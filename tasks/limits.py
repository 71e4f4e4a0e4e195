"""Questions and tasks that the model does not promise, which it refuses.

A model that has only seen questions with answers invents one for every other question. So it must see many questions
that it can only refuse. Near misses matter most: questions that look like a promise and are none, such as roots next
to sums. Without them the model would give a wrong number with the authority of the calculator.
"""

import random

from tasks.dates import MONTHS, WEEKDAYS
from tasks.items import Item, Wordings, name_as_typed
from tasks.promise import REFUSAL
from tasks.small_talk import TALK
from tasks.sums import number
from tasks.units import SINGULAR, UNITS
from tasks.words import LETTERS, any_word, everyday_words, made_up_word, names


def _list(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(";")]


SLOTS = {
    "country": _list(
        "France; Spain; Italy; Norway; Poland; Greece; Japan; China; India; Brazil; Peru; Chile; Kenya; Egypt; Canada;"
        " Cuba; Turkey; Iran; Nepal; Ghana; Portugal; Austria; Sweden; Mexico; Germany; England; Russia; Europe; "
        "Africa; Paris; London; Berlin; Rome"
    ),
    "language": _list(
        "German; French; Spanish; Italian; Russian; Chinese; Japanese; Latin; Dutch; Polish; Turkish; Greek"
    ),
    "topic": _list(
        "life; love; music; history; the moon; the sun; the sea; physics; water; the weather; football; the war; "
        "money; art; chess; cooking; the internet; computers; politics; philosophy; dogs; cats; space; dreams; a car; "
        "my job; school; biology; food; the future; black holes; gold; the president; a castle; poetry; movies; time; "
        "religion; trees; the earth; a good book; the stock market; health; birds; the ocean; germany; friendship; "
        "happiness; quantum physics; climate change; gravity; dinosaurs; electricity; a virus; the brain; bitcoin; "
        "sports; evolution; democracy; python; a list; len; a neural network; attention; linux; open source"
    ),
    "verb": _list(
        "cook rice; learn french; fix my car; get rich; make friends; bake a cake; sleep better; find a job; lose "
        "weight; learn to swim; play chess; build a house; draw a cat; write a book; fly a plane; buy a house; clean "
        "my room; install linux; grow tomatoes; become famous; stop smoking; make coffee; tie a tie; save money; train"
        " a dog; sort a list; open a file in python; write a loop"
    ),
    "task": _list(
        "sing; dance; see; hear me; search the web; open a file; send a letter; run a program; play chess; draw a "
        "picture; read my mind; translate this; remember me; cook; drive a car; call my mother; order a pizza; book a "
        "flight; set an alarm; play music; play a game; send an email; write code; write a program; write a story; "
        "write a song; write an essay; do my homework; summarize a text; translate hello; speak german; speak french; "
        "fly; show me a photo; buy me a car; tell a story; tell the future; browse the internet; write a letter; "
        "paint; think; feel pain; learn; make me a sandwich; find my keys; predict the weather; fix my code; turn on "
        "the light; create an image; write a poem; explain python; proofread my text"
    ),
    "writing": _list(
        "a joke; a story; a poem; a song; a secret; a riddle; a letter; an essay; a fairy tale; a haiku; a recipe; a "
        "rap; a fun fact"
    ),
    "thing": _list(
        "apples; books; cookies; coins; eggs; pens; cats; balls; stamps; cards; oranges; cakes; dollars; tickets; "
        "candies; pencils; toys; fish"
    ),
    # units that are not promised
    "odd": _list(
        "miles; mile; pounds; lbs; ounces; oz; gallons; pints; cups; fahrenheit; celsius; degrees; kelvin; acres; "
        "hectares; knots; stones; tons; nautical miles; light years; calories; joules; watts; bytes; megabytes; mb; "
        "gb; decades; centuries; euros; yen; square meters; mph; km/h; tablespoons"
    ),
    "feast": _list("christmas; easter; new year; my birthday; summer; halloween; the weekend; spring; friday"),
}
TAKEN = {
    "name",
    "sentence",
    "year",
    *SINGULAR.values(),
    *(text for texts in TALK.values() for text in texts.split("; ")),
}
FAR = Wordings(
    known=tuple(
        _list(
            "what is the capital of {country}?; how many people live in {country}?; who is the president of "
            "{country}?; how far is it to {country}?; where is {country}?; what do they speak in {country}?; how big "
            "is {country}?; how old is {topic}?; what is {topic}?; what is {topic}?; what is {topic}?; tell me about "
            "{topic}.; explain {topic}.; what do you know about {topic}?; why is {topic} important?; who invented "
            "{topic}?; when did {topic} begin?; what is the meaning of {topic}?; what is the price of {topic}?; why do"
            " we need {topic}?; where is {name}?; who is {name}?; when was {name} born?; what does {name} like?; how "
            "old is {name}?; what is the news?; what's the weather in {country}?; what's the weather like?; what is "
            "the weather today?; will it rain tomorrow?; what time is it?; what year is it?; who won the world cup?; "
            "why is the sky blue?; how do i {verb}?; how can i {verb}?; how to {verb}; what is my name?; how old am "
            "i?; where am i?; who is the king of {country}?; what is a {word}?; what does {word} mean?; what color is "
            "a {word}?; where can i buy a {word}?; define {word}.; what is the biggest {word}?; how tall is {name}?; "
            "who wrote {topic}?; what happened in {year}?; who was born in {year}?; why is a {word} so {word}?; how "
            "does a {word} work?; can you explain {topic}?; do you know {name}?; do you know {country}?; what does "
            "{topic} do?; what are {word}s?; can you {task}?; can you {task}?; {task}; please {task}.; could you "
            "{task}?; tell me {writing}.; write {writing}.; write me {writing}.; write {writing} about {topic}.; can "
            "you write me {writing}?; tell me {writing} about {topic}.; i want {writing}.; i want you to {task}.; will"
            " you {task}?; do you know {writing}?; make up {writing}.; draw a {word}.; show me a {word}.; do you speak"
            " {language}?; do you like {topic}?; do you like {word}s?; what do you think about {topic}?; what do you "
            "think of {name}?; do you love me?; what is your favorite color?; what is your favorite {word}?; is "
            "{topic} good?; are you happy?; do you have feelings?; do you believe in {topic}?; do you want a {word}?; "
            "should i {verb}?; is {name} nice?; {noise}; {noise} {noise}; {noise}?; {noise} {word} {noise}.; {word}; "
            "{word} {word}; ?; ...; !; i like {topic}.; i have a {word}.; my {word} is {word}.; the {word} is {word}.;"
            " {name} is my friend."
        )
    ),
    new=tuple(
        _list(
            "who governs {country}?; what is special about {country}?; how does {topic} work?; tell me a fact about "
            "{topic}.; where does {name} live?; how long does a {word} live?; who discovered {topic}?; what is the "
            "best way to {verb}?; give me some information about {topic}.; is it raining?; what time is it in "
            "{country}?; why do {word}s exist?; i need you to {task}.; are you able to {task}?; give me {writing}.; "
            "compose {writing} about {topic}.; how about {writing}?; would you {task}?; let me hear {writing}.; what "
            "is your opinion on {topic}?; do you prefer {topic} or {word}s?; do you enjoy {topic}?; {noise} {noise} "
            "{noise}; {word} {noise}"
        )
    ),
)
NEAR = {
    "numbers": Wordings(
        known=tuple(
            _list(
                "what is the square root of {n}?; square root of {n}; sqrt({n}); sqrt {n}; what is the root of {n}?; "
                "what is the cube root of {n}?; √{n}; {n} squared; what is {n} squared?; what is the square of {n}?; "
                "{n} cubed; {n}^{m}; {n} ^ {m}; {n}**{m}; {n} ** {m}; what is {n}^{m}?; what is {n} to the power of "
                "{m}?; {n} to the power of {m}; what is {n} to the {m}th power?; what is {m}% of {n}?; {m}% of {n}; "
                "{m} percent of {n}; what is {m} percent of {n}?; what percent of {n} is {m}?; add {m}% to {n}.; {n} "
                "mod {m}; what is the remainder of {n} divided by {m}?; what is the factorial of {m}?; {m}!; is {n} "
                "prime?; is {n} a prime number?; is {n} even?; is {n} odd?; what is half of {n}?; half of {n}; what is"
                " double {n}?; double {n}; what is a third of {n}?; log({n}); sin({n}); what is the cosine of {n}?; "
                "round {decimal}.; round {decimal} to {m} digits.; what is the average of {n}, {m} and {k}?; what is "
                "the mean of {n} and {k}?; which is bigger, {n} or {k}?; is {n} bigger than {k}?; what is the largest "
                "of {n}, {m} and {k}?; sort {n}, {m}, {k}.; what comes after {n}?; what number comes before {n}?; "
                "count to {m}.; count from {m} to {n}.; solve x + {m} = {n}.; {m}x = {n}; what is x if {m}x = {n}?; "
                "{m}x + {k}; what is {n} in binary?; what is {n} in roman numerals?; write {n} in words.; {n} / 0; "
                "what is {n} divided by 0?; {n}; {n}?; is {m} a factor of {n}?; what are the factors of {n}?; what is "
                "the absolute value of -{n}?; {n} > {k}; guess a number.; give me a random number.; what is the "
                "biggest number?; how many digits does {n} have?; what is pi?; how many digits has pi?; what is the "
                "area of a circle with radius {m}?; what is the area of a square with side {m}?"
            )
        ),
        new=tuple(
            _list(
                "find the square root of {n}.; raise {n} to the power {m}.; how much is {m} percent of {n}?; calculate"
                " {m}% of {n}.; what is one half of {n}?; compute the root of {n}.; {n} modulo {m}; tell me whether "
                "{n} is prime.; which number is larger, {n} or {k}?; what is the median of {n}, {m} and {k}?"
            )
        ),
    ),
    "stories": Wordings(
        known=tuple(
            _list(
                "{name} has {m} {thing} and gets {k} more. how many {thing} has {name}?; {name} has {m} {thing}. "
                "{name} eats {k}. how many are left?; if i have {m} {thing} and lose {k}, how many do i have?; i have "
                "{m} {thing} and buy {k} more, how many {thing} do i have?; a box has {m} {thing}. how many {thing} "
                "are in {k} boxes?; {m} {thing} cost {k} dollars. what does one cost?; one of the {thing} costs {m} "
                "dollars. how much are {k}?; {name} is {m} years old. how old is {name} in {k} years?; a train goes "
                "{n} km in {m} hours. how fast is it?; share {n} {thing} among {m} friends.; how many {thing} are left"
                " if {name} takes {m} of {n}?; what is {m} {thing} plus {k} {thing}?; how much do {m} {thing} cost?"
            )
        ),
        new=tuple(
            _list(
                "{name} buys {m} {thing} and gives {k} away. how many remain?; there are {m} {thing} in a bag and {k} "
                "in a box. how many are there?; if {name} runs {m} km a day, how far is it in {k} days?"
            )
        ),
    ),
    "units": Wordings(
        known=tuple(
            _list(
                "{n} {odd} in {unit}?; {n} {odd} in {unit}; how many {unit} are in {n} {odd}?; convert {n} {odd} to "
                "{unit}.; convert {n} {unit} to {odd}.; how many {odd} are in {n} {unit}?; what is {n} {unit} in "
                "{odd}?; {n} {odd} to {odd}; how many {odd} is {n} {odd}?; how many {odd} are in a {odd}?; convert {n}"
                " {odd} into {unit}.; {n} {unit} to {odd}; {n} {odd} to {unit}; what is {n} {odd} in {odd}?; {n} "
                "{pair} in {other}?; how many {other} are in {n} {pair}?; convert {n} {pair} to {other}.; how many "
                "{other} in {n} {pair}?; {n} {pair} to {other}; how many {other} are in a {pair1}?; how many {other} "
                "in a {pair1}?; what is {n} {pair} in {other}?; how long is {n} {unit}?; how heavy is a {word}?; how "
                "far is {n} {unit}?; which is longer, {n} {unit} or {k} {unit}?; convert {n} {unit}.; how many {unit} "
                "are in a {word}?"
            )
        ),
        new=tuple(
            _list(
                "change {n} {odd} to {unit}.; {n} {odd} is how many {unit}?; how much is {n} {unit} in {odd}?; {n} "
                "{pair} is how many {other}?"
            )
        ),
    ),
    "letters": Wordings(
        known=tuple(
            _list(
                "how many letters are in {word}?; how many letters are in {word}?; how many letters does {word} have?;"
                " how many letters in {word}?; how many letters has {word}?; count the letters in {word}.; how long is"
                " the word {word}?; how many vowels are in {word}?; how many vowels does {word} have?; how many vowels"
                " in {word}?; count the vowels in {word}.; how many consonants are in {word}?; how many syllables are "
                "in {word}?; how many characters are in {word}?; how many words are in {word} {word}?; what is the "
                "length of {word}?; what is the first letter of {word}?; what is the last letter of {word}?; what is "
                "the third letter of {word}?; what letter does {word} start with?; reverse {word}.; spell {word} "
                "backwards.; say {word} backwards.; write {word} backwards.; what is {word} backwards?; what rhymes "
                "with {word}?; is {word} a palindrome?; what letter comes after {letter}?; what is the letter after "
                "{letter}?; what is the alphabet?; say the alphabet.; sort the letters of {word}.; make {word} "
                "plural.; what is the plural of {word}?; what is the opposite of {word}?; give me a synonym of "
                "{word}.; is {word} a word?; is {word} a noun?; use {word} in a sentence.; repeat {word} {m} times.; "
                "say {word} {m} times.; write {word} in capitals.; which letter is the most common in {word}?; how do "
                "you pronounce {word}?; translate {word} to {language}.; translate {word} into {language}.; what is "
                "{word} in {language}?; how do you say {word} in {language}?; say {word} in {language}.; give me a "
                "word with {letter}.; what words start with {letter}?; is there a {letter} in {word}?; does {word} "
                "contain {letter}?; replace {letter} with {letter2} in {word}.; where is the {letter} in {word}?; "
                "which is longer, {word} or {word2}?; what does {word} stand for?; is {word} spelled right?; correct "
                "the spelling of {word}."
            )
        ),
        new=tuple(
            _list(
                "tell me how many letters {word} has.; how many vowels can you find in {word}?; turn {word} around.; "
                "which letter comes first in {word}?; what is the {language} word for {word}?; how many different "
                "letters are in {word}?; find a rhyme for {word}."
            )
        ),
    ),
    "dates": Wordings(
        known=tuple(
            _list(
                "how many days until {feast}?; how many days are left until {feast}?; how long until {feast}?; days "
                "until {feast}; how many weeks until {feast}?; how many days until {month} {day}?; how many days from "
                "{month} {day} to {month2} {day}?; how many days are between {month} {day} and {month2} {day}?; what "
                "day is {month} {day}?; what weekday is {month} {day}, {year}?; what day was {month} {day}, {year}?; "
                "what day is today?; what day is it today?; what day is it?; what is today's date?; what is the date?;"
                " what day is tomorrow?; what day was yesterday?; what month is it?; when is {feast}?; what day is two"
                " days after {weekday}?; what day is {m} days after {weekday}?; if today is {weekday}, what day is in "
                "{m} days?; when is the next leap year?; what is the next leap year after {year}?; how old am i if i "
                "was born in {year}?; what year comes after {year}?; what century is {year}?; which season is "
                "{month}?; how many leap years are there?; why are there leap years?; what is a leap year?; how many "
                "days are in {m} years?; how many days are in {m} months?; how many days were in {year}?; how many "
                "months have 31 days?; is {month} cold?; is {weekday} a holiday?; how many years ago was {year}?; how "
                "many years are between {year} and {year2}?; what happened on {month} {day}?; is today {weekday}?; how"
                " many weekdays are there?; how many days are in a {pair1} and a {pair1}?; is it {weekday} today?; is "
                "it {month}?; who was born in {month}?; what is on {weekday}?"
            )
        ),
        new=tuple(
            _list(
                "how far away is {feast}?; count the days to {feast}.; on which weekday is {month} {day}?; which day "
                "is today?; which year is the next leap year?; tell me the date."
            )
        ),
    ),
}


def limits(rng: random.Random) -> Item:
    """A question or task that is far from what the model promises."""
    return _refused(rng, FAR)


def near_misses(rng: random.Random) -> Item:
    """A question that looks like one that the model answers."""
    return _refused(rng, rng.choice((*NEAR.values(), NEAR["numbers"], NEAR["letters"], NEAR["units"])))


def _refused(rng: random.Random, wordings: Wordings) -> Item:
    wording = rng.choice(wordings.known + wordings.new)
    slots = _slots(rng)
    only = Wordings((wording,)) if wording in wordings.known else Wordings((), (wording,))
    # The item is the whole question. One without slots is a fact: this is refused.
    question = wording.format_map(slots).lower().rstrip(".?")
    return Item(question, only, REFUSAL, slots, closed="{" not in wording)


def _slots(rng: random.Random) -> dict[str, str]:
    pair, other = _unlike_units(rng)
    plain = {name: rng.choice(choices) for name, choices in SLOTS.items()}
    plain["country"], plain["language"] = (name_as_typed(plain[name], rng) for name in ("country", "language"))
    month, month2, weekday = (rng.choice(names) for names in (list(MONTHS), list(MONTHS), WEEKDAYS))
    return {
        **plain,
        **{"name": name_as_typed(rng.choice(names()), rng), "noise": _noise(rng)},
        **{"word": _word(rng), "word2": _word(rng)},
        **{"letter": rng.choice(LETTERS), "letter2": rng.choice(LETTERS)},
        **{"n": number(rng, rng.random() < 0.1), "k": number(rng, longest=3), "m": str(rng.randint(2, 20))},
        **{
            "decimal": number(rng, decimals=True),
            "year": str(rng.randint(1200, 2040)),
            "year2": str(rng.randint(1800, 2040)),
        },
        **{"month": name_as_typed(month, rng), "month2": name_as_typed(month2, rng), "day": str(rng.randint(1, 28))},
        **{"weekday": name_as_typed(weekday, rng), "unit": rng.choice(rng.choice(rng.choice(UNITS)[:2]))},
        **{"pair": pair, "pair1": pair.removesuffix("s"), "other": other},
    }


def _word(rng: random.Random) -> str:
    """A word that makes no question of another skill: "how many minutes are in a word?", "hello"."""
    while True:
        word = any_word(rng) if rng.random() < 0.5 else rng.choice(everyday_words())
        if word not in TAKEN:
            return word


def _unlike_units(rng: random.Random) -> tuple[str, str]:
    """Two units that are both promised, but not with each other."""
    sides = [side for pair in UNITS for side in pair[:2]]
    # How many days are in a year is a question on dates.
    promised = {frozenset((a[0], b[0])) for a, b, _ in UNITS} | {frozenset(("years", "days"))}
    while True:
        one, other = rng.choice(sides), rng.choice(sides)
        if one[0] != other[0] and frozenset((one[0], other[0])) not in promised:
            return rng.choice(one), rng.choice(other)


def _noise(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return made_up_word(rng, rng.randint(2, 7))
    return "".join(rng.choice("asdfghjklqwertyuiopzxcvbnm") for _ in range(rng.randint(2, 7)))
