"""Questions and tasks that the model does not promise, which it refuses.

A model that has only seen questions with answers invents one for every other question. So it must see many questions
that it can only refuse. Near misses matter most: questions that look like a promise and are none, such as roots next
to sums. Without them the model would give a wrong number with the authority of the calculator.
"""

import random

from tasks.dates import AFTER, BEFORE, MONTHS, WEEKDAYS
from tasks.items import Item, Wordings, name_as_typed
from tasks.promise import REFUSAL
from tasks.small_talk import HELLO, TALK
from tasks.sums import ASKED, division_by_zero, number
from tasks.text_skills import REPEAT, SPELL
from tasks.units import CONVERT, LENGTHS, SINGULAR, TIMES, UNITS
from tasks.words import LETTERS, any_word, everyday_words, made_up_word, names


def _list(text: str) -> tuple[str, ...]:
    return tuple(part for part in (" ".join(part.split()) for part in text.split(";")) if part)


SLOTS = {
    "country": _list(
        "France; Spain; Italy; Norway; Poland; Greece; Japan; China; India; Brazil; Peru; Chile; Kenya; Egypt; Canada; "
        "Cuba; Turkey; Iran; Nepal; Ghana; Portugal; Austria; Sweden; Mexico; Germany; England; Russia; Europe; "
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
        "my room; install linux; grow tomatoes; become famous; stop smoking; make coffee; tie a tie; save money; train "
        "a dog; sort a list; open a file in python; write a loop"
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
    # units that are not promised, many and one
    "odd": _list(
        "miles; pounds; lbs; ounces; oz; gallons; pints; cups; fahrenheit; celsius; degrees; kelvin; acres; hectares; "
        "knots; stones; tons; nautical miles; light years; calories; joules; watts; bytes; megabytes; mb; gb; decades; "
        "centuries; euros; yen; square meters; mph; km/h; tablespoons; f; c; quarts; pennies; dozens"
    ),
    "odd1": _list(
        "mile; pound; gallon; pint; cup; ton; stone; byte; decade; century; euro; dozen; quart; teaspoon; light year; "
        "fortnight; yen; penny"
    ),
    "letters": _list(
        "letters; letters; letters; letters; letters; letters; letters; vowels; vowels; consonants; syllables; "
        "characters; words; capital letters; different letters; double letters"
    ),
    # what follows a word that is to be repeated, or spelled
    "how": _list(
        "twice; three times; two times; {m} times; ten times; backwards; in reverse; in {language}; in capitals; in "
        "uppercase"
    ),
    "reading": _list("backwards; in reverse; in {language}; twice; in capitals"),
    # what is no sum for the calculator
    "computed": _list(
        "{n}^{m}; {n} ^ {m}; {n}**{m}; {n} to the power of {m}; {m}% of {n}; {m} percent of {n}; {m}% of "
        "{n}; {m}% from {n}; {n} plus {m}%; {n} + {m}%; {n} minus {m} percent; the square root of {n}; the root of "
        "{n}; sqrt({n}); sqrt {n}; square root of {n}; the cube root of {n}; {n} squared; {n} cubed; the square of "
        "{n}; half of {n}; a third of {n}; double {n}; {m}!; the factorial of {m}; {n} mod {m}; log({n}); sin({n}); "
        "the logarithm of {n}; {n} in binary; {n} in roman numerals; {m}x + {k}; x + {m}; the average of {n} and {k}; "
        "the maximum of {n} and {k}; {n} {thing} plus {k} {thing}; {word} plus {m}; {n} {unit} plus {k} {unit}; {n} "
        "{unit} minus {k} {unit}; pi; infinity"
    ),
    "feeling": _list(
        "sad; tired; happy; hungry; bored; sick; angry; lonely; sleepy; cold; scared; lost; fine; ok; confused; late; "
        "busy; thirsty; rich; old; young; ready; back; sorry; good; great; well; new here; hot; nervous; excited; "
        "curious; lucky; so tired; very hungry; not well; a bit sad"
    ),
    "feast": _list("christmas; easter; new year; my birthday; summer; halloween; the weekend; spring; friday"),
}
TAKEN = {
    "name",
    "sentence",
    "year",
    *SINGULAR.values(),
    *(name.lower() for name in (*MONTHS, *WEEKDAYS)),
    *(text for texts in TALK.values() for text in texts.split("; ")),
}
FAR = Wordings(
    _list(
        "[what is|what's|tell me|name] the capital of {country}?; how many people live in {country}?; who is the "
        "[president|king|queen|chancellor|leader] of {country}?; how far is [it to |]{country}?; where is "
        "{country}?; what [do they speak|language is spoken] in {country}?; how big is {country}?; how old is "
        "{topic}?; what is {topic}?; what is {topic}?; what's {topic}?; what are {topic}?; [please |can you |could "
        "you |]tell me [about|more about|something about|a fact about|everything about] {topic}.; [please |can you "
        "|could you |]explain {topic}[| to me].; what do you know about {topic}?; why is {topic} important?; who "
        "[invented|discovered|wrote|started|made] {topic}?; when did {topic} [begin|end|start]?; what is the "
        "[meaning|price|point|history|future|name|color] of {topic}?; why do we need {topic}?; where is {name}?; who "
        "is {name}?; when was {name} born?; what does {name} like?; how old is {name}?; how tall is {name}?; where "
        "does {name} live?; what is the news?; [what's|what is|how is] the weather[| like][| today| in {country}| "
        "tomorrow]?; will it rain [tomorrow|today]?; is it [raining|cold|late|dark]?; what time is it[| in "
        "{country}| now]?; what year is it?; who won the [world cup|game|election|war]?; why is the sky blue?; how "
        "[do i|can i|do you|should i|to] {verb}?; how to {verb}; what is the best way to {verb}?; what is my name?; "
        "how old am i?; where am i?; what is a {word}?; what is a {word}?; what does {word} mean?; what color is a "
        "{word}?; where can i buy a {word}?; [define|describe] {word}.; what is the [biggest|best|smallest|fastest] "
        "{word}?; what happened in {year}?; who was born in {year}?; why is a {word} so {word}?; how does [a "
        "{word}|{topic}] work?; how long does a {word} live?; why do {word}s exist?; do you know {name}?; do you "
        "know {country}?; what does {topic} do?; what are {word}s?; can you {task}?; can you {task}?; {task}; "
        "[please|now|just|kindly|hey,] {task}.; [could|would|will] you {task}?; i [want|need|would like] you to "
        "{task}.; are you able to {task}?; help me {verb}.; [tell me|write|write me|give me|make "
        "up|make|compose|create|let me hear|show me] {writing}.; [tell me|write|write me|give me|make up|compose|can "
        "you write] {writing} about {topic}.; [can|could|would|will] you [write|tell|give|make] me {writing}?; i "
        "want {writing}.; do you know {writing}?; how about {writing}?; draw [a|me a] {word}.; show me a {word}.; do "
        "you speak {language}?; do you [like|love|enjoy|hate|want|prefer] [{topic}|{word}s]?; what do you think "
        "[about {topic}|of {name}]?; do you love me?; what is your [favorite {word}|favorite color|favorite "
        "food|opinion on {topic}|job|age|goal]; is {topic} [good|bad|real|dangerous]?; are you "
        "[happy|sad|tired|hungry|angry|free|busy|single]?; do you have [feelings|friends|a body|parents|a wife|a "
        "dog|children|dreams]?; do you believe in {topic}?; do you want a {word}?; should i {verb}?; is {name} "
        "nice?; who governs {country}?; what is special about {country}?; give me [some information|a list|an "
        "overview] of {topic}.; {noise}; {noise} {noise}; {noise}?; {noise} {word} {noise}.; {word} {noise}; {word}; "
        "{word} {word}; {word} {word} {word}.; ?; ...; !; i [like|love|hate|need|want] {topic}.; i have a {word}.; "
        "my {word} is {word}.; the {word} is {word}.; {name} is my friend.; [recommend|suggest] [a book|a movie|a "
        "song|a {word}].; which [{word}|book|movie|car|language] [should i buy|do you like|is the best]?; who "
        "[are|is] the [beatles|best player|richest man|pope]?; what should i [eat|do|wear|read|cook|buy] "
        "[today|tonight|now]?; [search|google|look up|find] {topic}.; [why|how|when|where|who]?; [what if|why not] "
        "{topic}?; [can you |please |now |]write [a|me a|an|one] "
        "[poem|program|song|story|text|letter|joke|book|function|essay|list|script].; how many "
        "[parameters|layers|words|parameters|books|parameters|legs|letters|things|neurons] do you "
        "[have|know|see|need]?; how many [people|stars|{topic}|{word}s] are there?"
    )
)
NEAR = {
    "numbers": Wordings(
        _list(
            "[sqrt|log|ln|sin|cos|tan|exp|abs]({n}); √{n}; [square root|sqrt|root|cube root] of {n}; square {n}.; "
            "raise {n} to the power {m}.; what is {n} to the {m}th power?; {m} to the [second|third|fourth] power; "
            "what [percent|percentage] of {n} is {m}?; [add|subtract] {m}[%| percent] [to|from] {n}.; {n} "
            "[plus|minus|+|-] {m}%; {n} [mod|modulo] {m}; [what is |]the remainder of {n} divided by {m}?; remainder "
            "of {n} / {m}; what is the factorial of {m}?; {m}!; {m} factorial; [factorize|factor] {n}.; is {n} "
            "[prime|a prime number|prime?|even|odd|a square|divisible by {m}|bigger than {k}|negative]?; [what is "
            "|]half of {n}?; what is one half of {n}?; [what is |]double {n}?; double {n}; what is [a third|a "
            "quarter|two thirds|one third] of {n}?; [what is the |][sine|cosine|tangent|logarithm] of {n}?; round "
            "{decimal}.; round {decimal} to {m} digits.; [what is|calculate|find] the "
            "[average|mean|median|maximum|minimum|gcd|range] of {n}, {m} and {k}?; what is the [mean|average] of {n} "
            "and {k}?; which [is bigger|is smaller|is larger|number is larger|is more], {n} or {k}?; what is the "
            "[largest|smallest] of {n}, {m} and {k}?; sort {n}, {m}, {k}.; what [comes|number comes] [after|before] "
            "{n}?; count to {m}.; count from {m} to {n}.; count [backwards|down] from {n}.; [solve |]x + {m} = {n}.; "
            "what is x if {m}x = {n}?; {m}x + {k}; [find|solve for] x.; what is {n} in [binary|roman "
            "numerals|hexadecimal|words|{language}]?; write {n} in words.; {n}; {n}?; is {m} "
            "a factor of {n}?; what are the [factors|divisors|multiples] of {n}?; what is the absolute value of -{n}?; "
            "{n} [>|<|>=|==] {k}; guess a number.; [give me|pick|choose|say] a random number.; what is the biggest "
            "number?; how many digits [does {n} have|are in {n}]?; [what is|what's|calculate] pi?; how many digits has "
            "pi?; what is the area of a [circle|square|triangle|room] with [radius|side|height] {m}?; {m}% ; {n} "
            "dollars minus {m} percent; what is the derivative of x^{m}?; integrate x.; [what is |]infinity "
            "[plus|minus|times] {m}?; {n} choose {m}; list the first {m} primes."
        )
    ),
    "stories": Wordings(
        _list(
            "{name} has {m} {thing} and [gets|buys|finds|loses|eats|sells] {k}[| more]. how many {thing} [has "
            "{name}|does {name} have|are left]?; {name} has {m} {thing}. {name} [eats|sells|gives away|loses] {k}. how "
            "many are left?; if i have {m} {thing} and [lose|eat|buy|get|sell] [{k}|one|two], how many [do i have|are "
            "left|remain]?; if [you|we|i|they] have {m} {thing} and [eat|take away|add|give away] [{k}|one|two], how "
            "many [are there|are left]?; i have {m} {thing} and buy {k} more, how many {thing} do i have?; i "
            "[had|have] {m} {thing}. i [ate|sold|lost|bought] {k}. how many now?; a box has {m} {thing}. how many "
            "{thing} are in {k} boxes?; {m} {thing} cost {k} dollars. what does one cost?; one of the {thing} costs "
            "{m} dollars. how much are {k}?; {name} is {m} years old. how old is {name} in {k} years?; a "
            "[train|car|bus] goes {n} km in {m} hours. how fast is it?; [share|split|divide] {n} {thing} "
            "[among|between] {m} friends.; how many {thing} are left if {name} takes {m} of {n}?; what is {m} {thing} "
            "[plus|minus|and|times] {k} {thing}?; {m} {thing} [+|plus|and|minus] {k} {thing}; how much do {m} {thing} "
            "cost?; how many {thing} [do i have|are there|can i eat]?; {name} [buys|takes] {m} {thing} and gives {k} "
            "away. how many remain?; there are {m} {thing} in a bag and {k} in a box. how many are there?; if {name} "
            "runs {m} km a day, how far is it in {k} days?; {m} [people|friends|children] eat {k} {thing} each. how "
            "many {thing} are needed?"
        )
    ),
    "units": Wordings(
        _list(
            "how [long|heavy|far|much] is [{n} {unit}|a {word}|a {unit}]?; which is [longer|more|heavier], {n} {unit} "
            "or {k} {unit}?; convert {n} {unit}.; convert {n}.; convert {n} {word} to {word}.; how many {unit} are in "
            "a {word}?; {n} {unit}; what is a {unit}?; how many {word}s are in a {word}?; {unit} [in|to] {odd}; {odd} "
            "[in|to] {unit}; {unit} in a {odd1}; {odd} in a {odd1}; how [long|much|heavy] is a {odd1}?; how many "
            "{pair} are in a {pair1}?; {m} {pair} [in|to] {other}; how many {other} are in {m} {pair}?; convert {m} "
            "{pair} to {other}.; how many {odd} [are |]in an [ounce|acre|inch|hour|euro]?; {pair} in a {pair1}"
        )
    ),
    "letters": Wordings(
        _list(
            "how long is [the word |]{word}?; how many words are in {word} {word}?; how many letters are in {word}?; "
            "how many vowels can you find in {word}?; how many [letters|words|vowels] are in [my name|this "
            "sentence|it]?; what is the length of {word}?; [what|which] is the [first|last|second|third|middle] letter "
            "[of|in] {word}?; [what|which] letter does {word} [start|end|begin] with?; which letter [comes first|is "
            "last] in {word}?; [reverse|mirror|flip|invert] {word}.; what is {word} [backwards|reversed|in reverse]?; "
            "turn {word} around.; what rhymes with {word}?; find a rhyme for {word}.; is {word} [a palindrome|a word|a "
            "noun|a verb|a name|spelled right|spelled correctly|english]?; what [letter comes|comes] [after|before] "
            "{letter}?; what is the letter [after|before] {letter}?; [what is|say|write|tell me] the alphabet.; sort "
            "the letters [of|in] {word}.; make {word} plural.; what is the [plural|opposite|meaning|past "
            "tense|origin|definition|synonym] of {word}?; give me [a synonym|the plural|an anagram|a rhyme] of "
            "{word}.; use {word} in a sentence.; [say|write|type|print] {word} in "
            "[capitals|uppercase|bold|{language}|small letters].; which letter is the most common in {word}?; how do "
            "you pronounce {word}?; [please |can you |]translate [|the word ]{word} [to|into] {language}.; translate "
            "{word} {word} to {language}.; what is {word} in {language}?; how do you [say|write|spell] {word} in "
            "{language}?; what is the {language} word for {word}?; give me a word [with|that starts with|without] "
            "{letter}.; what words [start|end] with {letter}?; is there [a|an|any] {letter} in {word}?; does {word} "
            "[contain|have|start with|end with] {letter}?; replace {letter} with {letter2} in {word}.; remove {letter} "
            "from {word}.; where is the {letter} in {word}?; which is longer, {word} or {word2}?; what does {word} "
            "stand for?; correct the spelling of {word}.; shorten {word}.; abbreviate {word}.; say [something "
            "nice|something funny|anything you like|yes or no]; write [something|about {topic}|a sentence|a word|my "
            "homework|the answer|code|a list of {word}s|a letter to {name}].; [repeat|say] [that|it again|the last "
            "word|yourself|what i said|the question].; [print|type|copy] [the file|my document|a page|the "
            "text|faster].; spell [a word|any word] for me.; can you [read|talk|hear|type|draw|sing|lie]?"
        )
    ),
    "dates": Wordings(
        _list(
            "how many [days|weeks|months] [until|till|to|are left until] {feast}?; how long until {feast}?; "
            "[days|weeks] until {feast}; how many days until {month} {day}?; how many days [from|are between|between] "
            "{month} {day} [to|and] {month2} {day}?; what [day|weekday] is {month} {day}[|, {year}]?; on which weekday "
            "is {month} {day}?; what day was {month} {day}, {year}?; [what|which] day is [today|it "
            "today|it|tomorrow]?; what day was [yesterday|i born]?; [what is|what's|tell me] [today's date|the "
            "date|the time|the day]?; what month is it?; [when|how far away] is {feast}?; what day is "
            "[two|three|four|{m}] days [after|before|from] {weekday}?; if today is {weekday}, what day is [in {m} "
            "days|tomorrow|next week]?; [when|which year] is the next leap year?; what is the next leap year after "
            "{year}?; how old am i if i was born in {year}?; what year [comes after|comes before|was before] {year}?; "
            "what century is {year}?; which season is {month}?; how many leap years are there?; why are there leap "
            "years?; what is a leap year?; how many days are in {m} [years|months]?; how many days were in {year}?; "
            "how many months have 31 days?; is {month} [cold|hot|over|long]?; is {weekday} a holiday?; how many years "
            "ago was {year}?; how many years are between {year} and {year2}?; what happened on {month} {day}?; is "
            "today {weekday}?; how many [weekdays|months|seasons|days] are there?; how many days are in a {pair1} and "
            "a {pair1}?; is it {weekday} today?; is it {month}?; who was born in {month}?; what is on {weekday}?; "
            "count the days to {feast}.; is {weekday} before {weekday}?; what is [tomorrow|yesterday|next week]?; "
            "[list|name] [the months|all months|the days of the week|all weekdays].; what month is "
            "[{feast}|summer|cold]?"
        )
    ),
    "names": Wordings(
        _list(
            "i am from {country}.; i'm from {country}.; i live in {country}.; i am a {word}.; i'm a {word}.; i am an "
            "[engineer|artist|idiot|expert|actor].; i am {m} years old.; i'm {m}.; i am your "
            "[friend|boss|user|teacher|father|owner].; my "
            "[dog|cat|brother|sister|mother|father|friend|teacher|boss|son|daughter] is [called |named |]{name}.; [do "
            "you know|say|guess|remember|what's|what is] my name[|?]; what is my [job|age|dog's "
            "name|birthday|password]?; call [my mother|the police|a doctor|{country}].; this is [great|bad|a test|not "
            "true|funny|boring|wrong|a {word}|my {word}].; it is [late|cold|raining|over|great|{weekday}|{m} "
            "o'clock].; it's [late|cold|raining|over|great|monday|nothing].; i am [looking for|thinking "
            "about|interested in|learning] {topic}.; i'm [looking for|thinking about|interested in|learning] {topic}.; "
            "is your name {name}?; are you {name}?; who is {name}?; my name has {m} letters.; i have {m} {thing}.; "
            "tell {name} i said hello.; say hello in {language}."
        )
    ),
}

COUNT_OTHER = Wordings(
    (
        "how many {letters} [are in|are there in|in|do you see in][| the word| the name] {word}?",
        "how many {letters} [does|do][| the word| the name] {word} [have|contain]?",
        "how many {letters} has[| the word| the name] {word}?",
        "[please |can you |now |]count[| the| all the| how many] {letters} [in|of][| the word| the name] {word}.",
        "[tell me|do you know|say] how many {letters} are in[| the word] {word}.",
        "[|the |what is the |tell me the |give me the ][number|count] of {letters} [in|of][| the word] {word}?",
        "in[| the word] {word}, how many {letters} are there?",
    )
)
FEELING = Wordings(
    (
        "[i am|i'm|im|i feel] {feeling}[.|.| today.| now.|, and you?]",
        f"{HELLO}[,|!|] [i am|i'm|im] {{feeling}}[| today].",
        "[it is|it's|this is|that is] [over|late|cold|raining|great|wrong|bad|true|fun|nothing|a test].",
    )
)
# the wordings of skills, and what fills their slots without being promised
LIKE = (
    *[(Wordings(ASKED), {"expression": SLOTS["computed"]})] * 2,
    (CONVERT, {"count": ("{n}", "{m}"), "unit": SLOTS["odd"], "to": ("{unit}", "{odd}")}),
    (CONVERT, {"count": ("{n}", "{m}"), "unit": ("{unit}",), "to": SLOTS["odd"]}),
    (CONVERT, {"count": ("a", "a", "one", "1"), "unit": SLOTS["odd1"], "to": ("{unit}", "{unit}", "{odd}")}),
    (CONVERT, {"count": ("{article}", "{article}", "one", "1"), "unit": ("{pair1}",), "to": ("{other}",)}),
    *[(COUNT_OTHER, {})] * 4,
    *[(REPEAT, {"text": tuple(f"{{word}} {how}" for how in SLOTS["how"])})] * 2,
    (SPELL, {"text": tuple(f"{{word}} {how}" for how in SLOTS["reading"])}),
    (AFTER, {"kind": ("letter", "number", "word", "year"), "text": ("{letter}", "{n}", "{word}", "{year}")}),
    (BEFORE, {"kind": ("letter", "number", "word", "year"), "text": ("{letter}", "{n}", "{word}", "{year}")}),
    (FEELING, {}),
)


def limits(rng: random.Random) -> Item:
    """A question or task that is far from what the model promises."""
    return _refused(rng, FAR)


def near_misses(rng: random.Random) -> Item:
    """A question that looks like one that the model answers.

    Half of them are asked in the very words of a skill, so that only what is asked for tells that it is no promise.
    """
    if rng.random() < 0.5:
        return _refused(rng, rng.choice((*NEAR.values(), NEAR["numbers"], NEAR["letters"], NEAR["letters"])))
    if rng.random() < 0.05:
        return division_by_zero(rng)
    wordings, filled = rng.choice(LIKE)
    return _refused(rng, wordings, {slot: rng.choice(texts) for slot, texts in filled.items()})


def _refused(rng: random.Random, wordings: Wordings, filled: dict[str, str] | None = None) -> Item:
    """An item of `wordings`; `filled` are slots whose texts have slots."""
    wording, slots = wordings.draw(rng), _slots(rng)
    slots |= {name: text.format_map(slots) for name, text in (filled or {}).items()}
    # The item is the whole question. One without slots is a fact: this is refused.
    question = wording.format_map(slots).lower().rstrip(".?")
    return Item(question, Wordings((wording,)), REFUSAL, slots, closed="{" not in wording)


def _slots(rng: random.Random) -> dict[str, str]:
    pair, other = _unlike_units(rng)
    pair1 = SINGULAR.get(pair, pair.removesuffix("s"))
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
        **{"pair": pair, "pair1": pair1, "article": "an" if pair1 in ("hour", "inch") else "a", "other": other},
    }


def _word(rng: random.Random) -> str:
    """A word that makes no question of another skill: "how many minutes are in a word?", "hello"."""
    while True:
        word = any_word(rng) if rng.random() < 0.5 else rng.choice(everyday_words())
        if word not in TAKEN:
            return word


def _unlike_units(rng: random.Random) -> tuple[str, str]:
    """Two units that are both promised, but not with each other, such as hours and months."""
    sides = [side for pair in rng.choice((TIMES, TIMES, LENGTHS)) for side in pair[:2]]
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
