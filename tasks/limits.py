"""Questions and tasks that are beyond a very small model, and the honest answer to each.

A model that has only seen questions with answers invents one for every other question. So it must see many questions
that it can only answer by saying that it does not know, cannot do it, has no opinion, or does not understand.
"""

import random

from tasks.items import Item, Wordings
from tasks.words import everyday_words, made_up_word, names

UNKNOWN, CANNOT, NO_OPINION, UNCLEAR = "I don't know.", "I cannot do that.", "I have no opinion.", "I don't understand."
COUNTRIES = (
    "France Spain Italy Norway Poland Greece Japan China India Brazil Peru Chile Kenya Egypt Canada Cuba Turkey Iran "
    "Nepal Ghana Portugal Austria Sweden Mexico Germany England Russia Europe Africa Paris London Berlin Rome"
).split()
TOPICS = (
    "life; love; music; history; the moon; the sun; the sea; physics; water; the weather; football; the war; "
    "money; art; chess; cooking; the internet; computers; politics; philosophy; dogs; cats; space; dreams; a car; "
    "my job; school; biology; food; the future; black holes; gold; the president; a castle; poetry; movies; time; "
    "religion; trees; the earth; a good book; the stock market; health; birds; the ocean; germany; friendship; "
    "happiness; quantum physics; climate change; gravity; dinosaurs; electricity; a virus; the brain; bitcoin; "
    "sports; evolution; democracy"
).split("; ")
VERBS = (
    "cook rice; learn french; fix my car; get rich; make friends; bake a cake; sleep better; find a job; lose "
    "weight; learn to swim; play chess; build a house; draw a cat; write a book; fly a plane; buy a house; clean "
    "my room; install linux; grow tomatoes; become famous; stop smoking; make coffee; tie a tie; save money; "
    "train a dog"
).split("; ")
TASKS = (
    "sing; dance; see; hear me; search the web; open a file; send a letter; run a program; play chess; draw a "
    "picture; read my mind; translate this; remember me; cook; drive a car; call my mother; order a pizza; book a "
    "flight; set an alarm; play music; play a game; send an email; write code; write a program; write a story; "
    "write a song; write an essay; do my homework; summarize a text; translate hello; speak german; speak french; "
    "fly; show me a photo; buy me a car; tell a story; tell the future; browse the internet; write a letter; "
    "paint; think; feel pain; learn; make me a sandwich; find my keys; predict the weather; fix my code; turn on "
    "the light; create an image"
).split("; ")
WRITINGS = (
    "a joke; a story; a poem; a song; a secret; a riddle; a letter; an essay; a fairy tale; a haiku; a recipe; a rap"
).split("; ")
LIMITS = {
    UNKNOWN: Wordings(
        known=(
            "what is the capital of {country}?",
            "how many people live in {country}?",
            "who is the president of {country}?",
            "how far is it to {country}?",
            "where is {country}?",
            "what do they speak in {country}?",
            "how big is {country}?",
            "how old is {topic}?",
            "what is {topic}?",
            "what is {topic}?",
            "tell me about {topic}.",
            "explain {topic}.",
            "what do you know about {topic}?",
            "why is {topic} important?",
            "who invented {topic}?",
            "when did {topic} begin?",
            "what is the meaning of {topic}?",
            "what is the price of {topic}?",
            "why do we need {topic}?",
            "where is {name}?",
            "who is {name}?",
            "when was {name} born?",
            "what does {name} like?",
            "how old is {name}?",
            "what is the news?",
            "what's the weather in {country}?",
            "what's the weather like?",
            "what is the weather today?",
            "what time is it?",
            "what day is it today?",
            "what is the date?",
            "what year is it?",
            "who won the world cup?",
            "why is the sky blue?",
            "how do i {verb}?",
            "how can i {verb}?",
            "how to {verb}",
            "what is my name?",
            "how old am i?",
            "where am i?",
            "who is the king of {country}?",
            "what is a {word}?",
            "what does {word} mean?",
            "what color is a {word}?",
            "where can i buy a {word}?",
            "define {word}.",
            "what is the biggest {word}?",
            "how tall is {name}?",
            "who wrote {topic}?",
            "what happened in {year}?",
            "who was born in {year}?",
            "why is a {word} so {word}?",
            "how does a {word} work?",
            "can you explain {topic}?",
            "do you know {name}?",
            "do you know {country}?",
        ),
        new=(
            "who governs {country}?",
            "what is special about {country}?",
            "how does {topic} work?",
            "tell me a fact about {topic}.",
            "where does {name} live?",
            "how long does a {word} live?",
            "who discovered {topic}?",
            "what is the best way to {verb}?",
            "give me some information about {topic}.",
            "is it raining?",
            "what time is it in {country}?",
            "why do {word}s exist?",
        ),
    ),
    CANNOT: Wordings(
        known=(
            "can you {task}?",
            "can you {task}?",
            "{task}",
            "please {task}.",
            "could you {task}?",
            "tell me {writing}.",
            "write {writing}.",
            "write me {writing}.",
            "write {writing} about {topic}.",
            "can you write me {writing}?",
            "tell me {writing} about {topic}.",
            "i want {writing}.",
            "i want you to {task}.",
            "will you {task}?",
            "do you know {writing}?",
            "make up {writing}.",
            "translate {word} to french.",
            "translate {word} into german.",
            "do you speak {language}?",
            "draw a {word}.",
            "show me a {word}.",
        ),
        new=(
            "i need you to {task}.",
            "are you able to {task}?",
            "give me {writing}.",
            "compose {writing} about {topic}.",
            "how about {writing}?",
            "would you {task}?",
            "what is {word} in {language}?",
            "let me hear {writing}.",
        ),
    ),
    NO_OPINION: Wordings(
        known=(
            "do you like {topic}?",
            "do you like {word}s?",
            "what do you think about {topic}?",
            "what do you think of {name}?",
            "do you love me?",
            "what is your favorite color?",
            "what is your favorite {word}?",
            "what's your favorite {word}?",
            "is {topic} good?",
            "are you happy?",
            "do you have feelings?",
            "are you sad?",
            "do you believe in {topic}?",
            "do you want a {word}?",
            "should i {verb}?",
            "is {name} nice?",
            "do you dream?",
            "do you hate {topic}?",
        ),
        new=(
            "what is your opinion on {topic}?",
            "do you prefer {topic} or {word}s?",
            "how do you like {topic}?",
            "do you enjoy {topic}?",
        ),
    ),
    UNCLEAR: Wordings(
        known=("{noise}", "{noise} {noise}", "{noise}?", "{noise} {word} {noise}.", "?", "...", "!"),
        new=("{noise} {noise} {noise}", "{word} {noise}"),
    ),
}
LANGUAGES = (
    "German; French; Spanish; Italian; Russian; Chinese; Japanese; Latin; Dutch; Polish; Turkish; Greek"
).split("; ")


NEW_SHARE = 0.2  # of the questions are in a new wording


def limits(rng: random.Random) -> Item:
    """A question or task that is beyond the model."""
    answer = rng.choice((UNKNOWN, UNKNOWN, UNKNOWN, CANNOT, CANNOT, NO_OPINION, UNCLEAR))
    task = rng.choice(TASKS)
    slots = {
        "country": _typed(rng.choice(COUNTRIES), rng),
        "topic": rng.choice(TOPICS),
        "verb": rng.choice(VERBS),
        "task": task,
        "name": _typed(rng.choice(names()), rng),
        "word": rng.choice(everyday_words()),
        "noise": _noise(rng),
        "writing": rng.choice(WRITINGS),
        "year": str(rng.randint(1200, 2030)),
        "language": _typed(rng.choice(LANGUAGES), rng),
    }
    # The item is the whole question, in a known or a new wording.
    if rng.random() < NEW_SHARE:
        question = rng.choice(LIMITS[answer].new).format_map(slots)
        return Item(question, Wordings((), ("{text}",)), answer, {"text": question})
    question = rng.choice(LIMITS[answer].known).format_map(slots)
    return Item(question, Wordings(("{text}",)), answer, {"text": question})


def _noise(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return made_up_word(rng, rng.randint(2, 7))
    return "".join(rng.choice("asdfghjklqwertyuiopzxcvbnm") for _ in range(rng.randint(2, 7)))


def _typed(name: str, rng: random.Random) -> str:
    return name.lower() if rng.random() < 0.3 else name
