"""Short passages of several kinds, written for this project: what `scripts.tok_eval` measures a tokenizer on."""

ENGLISH = """\
The ferry left before sunrise, when the harbour was still the colour of slate and the gulls had not yet begun
to argue. Margaret stood at the rail with her collar turned up and counted the lights on the far shore, as she
had done every winter since her father first took her across. There were fewer of them now. The cannery had
closed, then the school, and the white house on the hill, where somebody used to practise the cello with the
windows open, had been dark for three years.

"You could have written," said the man beside her, without turning his head.

"I did write," she answered. "I just never posted any of it."

He laughed at that, quietly, and offered her half of his sandwich. By the time they reached the pier it had
started to snow, and neither of them could remember what the quarrel had been about.
"""

TECHNICAL = """\
A heat pump moves heat rather than making it. A refrigerant evaporates at low pressure in the outdoor coil,
taking up heat even from cold air; a compressor raises its pressure and its temperature; in the indoor coil it
condenses and gives the heat away. Because only the moving costs energy, the heat delivered can be three or
four times the electricity consumed. This ratio, the coefficient of performance, falls as the difference
between the two temperatures grows, which is why large radiators or floor heating, fed with lukewarm water,
suit a heat pump better than small radiators fed with hot.
"""

PYTHON = '''\
from dataclasses import dataclass, field


@dataclass(order=True)
class Job:
    """One entry of the queue; lower priorities run first."""

    priority: int
    name: str = field(compare=False)
    retries: int = field(default=0, compare=False)


def run_all(jobs, handler, max_retries=3):
    pending = sorted(jobs)
    results = {}
    while pending:
        job = pending.pop(0)
        try:
            results[job.name] = handler(job)
        except (OSError, TimeoutError) as error:
            if job.retries >= max_retries:
                raise RuntimeError(f"{job.name} failed {job.retries} times") from error
            job.retries += 1
            pending.append(job)
    return {name: value for name, value in results.items() if value is not None}


if __name__ == "__main__":
    print(run_all([Job(2, "report"), Job(1, "fetch")], handler=lambda job: len(job.name) * 10))
'''

LANGUAGES = """\
Am Abend saßen wir auf der Veranda und hörten den Regen auf das Blechdach fallen; niemand wollte als Erster aufstehen.
Le boulanger ouvre sa boutique à six heures, et déjà l'odeur du pain chaud descend jusqu'à la place de l'église.
Mañana saldremos temprano: el camino es largo, la niebla baja hasta el río y los niños todavía duermen.
Вчера вечером мы долго говорили о море, хотя никто из нас никогда там не был.
昨日、古い本屋で祖父の名前が書かれた地図を見つけました。
这座桥建于一百多年前，每天仍有许多人从上面走过。
어제 산에서 내려오는 길에 작은 절을 보았습니다.
في الصباح الباكر كانت السوق هادئة، ولم يكن هناك سوى بائع واحد يرتب البرتقال.
कल रात बहुत तेज़ बारिश हुई और सुबह तक पूरी सड़क पानी से भर गई।
"""

MATHS = """\
Let f(x) = 3x^2 - 5x + 2. Then f'(x) = 6x - 5, which is zero at x = 5/6 ≈ 0.8333, and f(5/6) = -1/12.
The sum 1 + 2 + ... + 100 equals 100 * 101 / 2 = 5050; the sum of the squares is 100 * 101 * 201 / 6 = 338350.
∑_{k=0}^{n} C(n, k) = 2^n, so for n = 10 it is 1024, for n = 20 it is 1048576, and for n = 32 it is 4294967296.
If a² + b² = c² with a = 20 and b = 21, then c = 29. π ≈ 3.14159265358979, e ≈ 2.71828182845905, √2 ≈ 1.41421356237310.
2024-02-29 17:45:03, 98.6 °F = 37.0 °C, 1,299.00 + 19% = 1,545.81, 0x7FFF = 32767, 6.022e23.
"""

SYMBOLS = """\
😀 👩‍👩‍👧 🇫🇮 👍🏽 ☕️ → ⇒ ∀x∈ℝ ∃y: y > x; naïve café (e\u0301), Z\u0351\u036a\u0342a\u0321l\u0334go;
“quoted” – dashes — ½ ™ © №
"""

SAMPLES = {
    "English story": ENGLISH,
    "English technical": TECHNICAL,
    "Python code": PYTHON,
    "other languages": LANGUAGES,
    "maths and numbers": MATHS,
    "emoji and symbols": SYMBOLS,
}
