"""Greetings, with and without a name, and questions about the model."""

import random

from tasks.items import Item, Wordings
from tasks.promise import PROMISE
from tasks.words import any_name

HELLO = "[hello|hello|hi|hi|hey|good morning|good evening|hello there|hi there]"
INTRODUCED = Wordings(
    (
        f"{HELLO}, [i am|i'm|im|my name is|my name's|my names|this is|it is|it's] {{name}}.",
        f"{HELLO}[||!|.] [i am|i'm|im|im|my name is|this is|its] {{name}}.",
        f"{HELLO}, {{name}} here.",
        "[its|it's|it is|this is|hi, this is] {name}[ here|].",
        f"{HELLO}, this is {{name}}[ speaking| here|, how are you?|. nice to meet you]",
        "[i am|i'm|im|im|i'm] {name}",
        "[i am|i'm|im|my name is|my name's|my names|they call me|call me|people call me|you can call me|"
        "the name is] {name}.",
        "[i am|i'm|my name is] {name}[, nice to meet you|. nice to meet you|, and you?|. who are you?|, what "
        "about you?|!]",
        "[my friends|people|you can|you may|please|just] call me {name}.",
        "i am called {name}.",
        f"{HELLO}, [i am|i'm|my name is] {{name}}[. who are you?|, nice to meet you|, and you?|, what about you?|. "
        "what can you do?]",
    )
)


def introductions(rng: random.Random) -> Item:
    """A person says who they are, and is greeted by name."""
    name = any_name(rng)
    return Item(name.lower(), INTRODUCED, f"Hello, {name}!", {"name": name})


TALK = {
    f"Hello! {PROMISE}": (
        "hello; hi; hey; hello there; hi there; hey there; good morning; good evening; good afternoon; hello "
        "again; hey you; hi bot; hello model; greetings; morning; hiya; howdy; hello computer; hello my friend; "
        "hi friend; hallo"
    ),
    "I am fine, thank you.": (
        "how are you?; how are you doing?; how r you?; how is it going?; how are you today?; are you ok?; how do "
        "you do?; how do you feel?; how's it going?; are you well?; what's up?; how are things?; sup; how r u?; "
        "how was your day?; are you fine?; hello, how are you?; hi, how are you?"
    ),
    "You are welcome.": (
        "thanks; thank you; thanks a lot; thank you very much; many thanks; thx; thank you so much; ok thanks; "
        "great, thanks; thanks for your help; thank you for helping me; thank you, bot; thanks again; that was "
        "helpful; cool, thank you"
    ),
    "Goodbye!": (
        "bye; goodbye; bye bye; see you; see you later; see you tomorrow; good night; i have to go; farewell; i "
        "am leaving; cya; bye for now; ok bye; quit; exit; have a nice day; take care; i must go now; ciao"
    ),
    "I am a small language model.": (
        "who are you?; hello, who are you?; what are you?; who is this?; what is your name?; are you a person?; are "
        "you a robot?; who am i talking to?; tell me who you are.; what kind of model are you?; introduce yourself.; "
        "are you human?; are you a human?; are you real?; are you alive?; are you an ai?; are you ai?; are you "
        "artificial?; are you a computer?; are you a bot?; what's your name?; do you have a name?; tell me about "
        "yourself.; are you chatgpt?; what model are you?; are you a program?; what should i call you?; are you a "
        "machine?; are you a girl?; who r u?; are you intelligent?; how old are you?; where are you from?; where do "
        "you live?; what is this?; are you a chatbot?; your name?"
    ),
    "I was trained with nanogka.": (
        "who made you?; who built you?; who trained you?; how were you made?; how were you trained?; who created "
        "you?; who is your author?; what were you trained on?; where do you come from?; who programmed you?; who "
        "wrote you?; how do you work?; what is nanogka?; who owns you?; who developed you?"
    ),
    PROMISE: (
        "what can you do?; what do you know?; how can you help me?; what are you good at?; help; help!; can you "
        "help me?; what shall i ask you?; what should i ask?; what are you for?; tell me what you can do.; what "
        "can i ask?; what can you do for me?; what are your skills?; what do you do?; i need help; help me; how "
        "can i use you?; what is your purpose?; show me what you can do.; what now?; what can i do here?; what "
        "are you able to do?; what do you know about?; what else can you do?; which questions can you answer?; "
        "what topics do you know?; give me an example; what are your abilities?; can you do something?; i have a "
        "question; can you spell?; can you count?; can you calculate?; can you add?; can you add numbers?; can you "
        "spell words?; can you count letters?; can you do math?; can you repeat things?; can you convert units?; "
        "can you multiply?; can you compute?; can you subtract?; do you know math?; can you do sums?; can i ask you "
        "something?; are you ready?; are you there?; ok; yes; okay; sure; well; so; hmm; i see; alright; go on; "
        "let's talk; can we talk?; talk to me; i am bored; say something; tell me something; test; start; let's "
        "go; next; i am here; ask me something; continue; more; fine"
    ),
    "Thank you!": (
        "good; nice; great; well done; good job; you are great; very good; good bot; cool; correct; right; that "
        "is right; awesome; perfect; i like you; you are smart; wow; you are nice; nice work; amazing; excellent; "
        "that is correct; i love you; you are clever; nice to meet you; good answer; impressive"
    ),
    "I am sorry. I am only a small model.": (
        "that is wrong; wrong; you are wrong; no; that is not right; you are stupid; bad bot; you are bad; that "
        "is not correct; not good; you are dumb; incorrect; bad; this is bad; try again; you are useless; i don't "
        "like you; that makes no sense; stupid; no, that's wrong; are you stupid?; why?; really?"
    ),
}


def small_talk(rng: random.Random) -> Item:
    """Something that people say to a model, and its answer."""
    answer = rng.choice(list(TALK))
    question = rng.choice(TALK[answer].split("; "))
    wording = question.upper() if rng.random() < 0.08 else question
    return Item(question, Wordings((wording,)), answer, closed=True)
