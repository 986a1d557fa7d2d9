"""How was the bundled tiny-moe made? Trains it: a Qwen3-MoE of 4.7 M parameters, on one CPU thread, in `--minutes`.

Its text is the King James Bible (public domain), from a file that Debian's packages bible-kjv and bible-kjv-text write
with `bible -f Gen1:1-Rev22:21`, and stories and chats that this script makes itself from templates. Nothing is taken from
the web or from another model. The learning rate follows the clock, so a rerun is alike but not bit-equal.

    .venv/bin/python scripts/train_tiny_moe.py --kjv kjv_raw.txt --out tiny-moe --minutes 14
"""

import argparse
import json
import math
import random
import re
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

IM_START, IM_END, EOT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{%- for m in messages -%}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)

# ------------------------------------------------------------- template text

# fmt: off
GIRLS = "Anna Lily Mia Sara Emma Rosa Nina Ella Ruth Clara".split()
BOYS = "Tom Ben Max Sam Leo Jack Paul Adam Finn Oscar".split()
ANIMALS = "cat dog bird fish frog rabbit horse duck mouse bear fox cow sheep goat hen owl turtle bee".split()
SOUNDS = dict(cat="meows", dog="barks", bird="sings", frog="croaks", horse="neighs", duck="quacks", mouse="squeaks",
              bear="growls", cow="moos", sheep="bleats", hen="clucks", owl="hoots", bee="buzzes")
ADJ = "small big brown white black old young happy sad brave kind quiet funny clever gentle hungry".split()
PLACES = ["the park", "the garden", "the forest", "the river", "the hill", "the beach", "the farm", "the village",
          "the school", "the market", "the lake", "the old house"]
THINGS = "ball kite box book hat boat key lamp bell cup basket stone flower letter drum shell coin".split()
FOODS = "bread apples soup cake honey cheese berries milk rice plums".split()
WEATHER = ["The sun was warm.", "It was raining.", "The wind was strong.", "Snow lay on the ground.",
           "The sky was blue.", "It was a quiet morning.", "The moon was bright.", "The leaves were red and gold."]
COLORS = dict(sky="blue", grass="green", snow="white", blood="red", coal="black", gold="yellow", milk="white",
              leaf="green", night="black", sun="yellow", rose="red", sea="blue")
CAPITALS = {"France": "Paris", "Germany": "Berlin", "Spain": "Madrid", "Italy": "Rome", "Japan": "Tokyo",
            "China": "Beijing", "Egypt": "Cairo", "Norway": "Oslo", "Greece": "Athens", "Peru": "Lima",
            "Austria": "Vienna", "Poland": "Warsaw", "Portugal": "Lisbon", "Cuba": "Havana", "Kenya": "Nairobi",
            "Russia": "Moscow", "Sweden": "Stockholm", "Ireland": "Dublin", "Finland": "Helsinki", "India": "New Delhi"}
NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
           "seventeen eighteen nineteen twenty").split()
OPPOSITES = dict(hot="cold", big="small", up="down", day="night", old="young", fast="slow", happy="sad", open="closed",
                 light="dark", high="low", early="late", rich="poor", wet="dry", full="empty", soft="hard", left="right")
SERVING = {  # short facts about this project's own subject
    "a data parallel rank": "A data parallel rank is one engine that holds a full copy of the attention weights and serves its own requests.",
    "an actor": "An actor is a small program that owns its state and talks to others only by messages.",
    "the coordinator": "The coordinator gathers the load of every engine and tells the clients. It also starts each wave.",
    "a wave": "A wave is one period in which all engines run together. When no engine has work, the wave ends and all engines pause.",
    "a dummy step": "A dummy step is a forward pass without requests. An idle engine runs it so that the others do not hang.",
    "a mixture of experts": "A mixture of experts is a layer with many small networks. A router sends each token to a few of them.",
    "expert parallelism": "Expert parallelism places different experts on different engines and exchanges tokens between them.",
    "load balancing": "Load balancing sends each request to the engine that has the least work.",
    "the load score": "The load score is four times the waiting requests plus the running requests. The lowest score wins.",
    "a prefix cache": "A prefix cache keeps the keys and values of earlier prompts, so that a shared beginning is not computed twice.",
    "a token": "A token is a short piece of text, such as a word or a part of a word.",
    "a topology file": "A topology file names every actor and the sockets that connect them.",
    "internal mode": "In internal mode one entry takes all requests and chooses among all engines.",
    "hybrid mode": "In hybrid mode every node has its own entry, and each entry chooses only among its local engines.",
    "external mode": "In external mode every engine has its own entry, and a router outside chooses the engine.",
    "a message queue": "A message queue holds messages until the receiver is ready to read them.",
    "prefill": "Prefill reads the whole prompt at once and fills the cache.",
    "decode": "Decode writes the answer, one token at a time.",
    "a router": "A router looks at each request and decides which worker should serve it.",
    "a heartbeat": "A heartbeat is a small message that says that an actor is still alive.",
}
SHARES = [("bible", 0.35), ("story", 0.15), ("chat", 0.50)]  # of the windows
OPENINGS = ("In the beginning", "And the king said unto", "Once upon a time")
QUESTIONS = ("What is a wave?", "Tell me a story about a fox.", "What is the capital of Norway?", "What is 4 plus 5?")
GREET = ["Hello! How can I help you?", "Hi! What would you like to know?", "Hello! It is good to see you."]

# fmt: on


def pick(r, seq):
    return r.choice(list(seq))


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def person(r):
    return (pick(r, GIRLS), "She", "she", "her") if r.random() < 0.5 else (pick(r, BOYS), "He", "he", "his")


def story(r, hero=None):
    name, capital, he, his = person(r)
    animal, adj, place = hero or pick(r, ANIMALS), pick(r, ADJ), pick(r, PLACES)
    thing, food, friend = pick(r, THINGS), pick(r, FOODS), pick(r, GIRLS + BOYS)
    the_thing = f"{pick(r, ['red', 'blue', 'green', 'golden', 'little', 'old'])} {thing}"
    openings = [
        f"Once upon a time there was {article(adj + ' ' + animal)} who lived near {place}.",
        f"One day {name} went to {place} with {his} {animal}.",
        f"There was once {article(adj + ' ' + animal)} in {place}.",
        f"{name} had {article(adj + ' ' + animal)}. The {animal} liked {food}.",
    ]
    middle = [
        f"{name} found {article(the_thing)} near {place}.",
        f"The {animal} saw {article(the_thing)} and ran to {name}.",
        f"{name} was looking for {his} {the_thing}, but {he} could not find it.",
        f"{name} gave the {animal} some {food}, and the {animal} was glad.",
        f'Then {friend} came and asked, "May I play with you?"',
        f'"What is that?" asked {friend}. "It is my {the_thing}," said {name}.',
        f"The {animal} was {pick(r, ['tired', 'afraid', 'hungry', 'lost', 'cold'])}, so {name} sat down beside it.",
        f"They walked to {place} and looked at the water.",
        f"{capital} put the {the_thing} into a box and took it home.",
    ]
    endings = [
        f"They shared the {food} and were happy.",
        f"In the evening {name} and the {animal} went home.",
        f"{name} thanked {friend}, and they became good friends.",
        f"From that day on the {animal} was never alone.",
        f'"Thank you," said {name}. "You are a good friend."',
        f"Then {he} went to bed and slept well.",
    ]
    body = [pick(r, openings)]
    if r.random() < 0.5:
        body.append(pick(r, WEATHER))
    body += r.sample(middle, r.randint(2, 4))
    body.append(pick(r, endings))
    return " ".join(body)


def qa(r):
    kind = r.random()
    if kind < 0.22:
        topic, text = pick(r, SERVING.items())
        q = pick(
            r,
            [
                f"What is {topic}?",
                f"Explain {topic}.",
                f"Tell me about {topic}.",
                f"Can you explain {topic}?",
                f"what is {topic}",
            ],
        )
        return q, text
    if kind < 0.34:
        land, city = pick(r, CAPITALS.items())
        return pick(
            r,
            [
                f"What is the capital of {land}?",
                f"Which city is the capital of {land}?",
                f"Name the capital of {land}.",
            ],
        ), f"The capital of {land} is {city}."
    if kind < 0.44:
        a, b = r.randint(0, 10), r.randint(0, 10)
        return pick(
            r, [f"What is {a} plus {b}?", f"What is {a} + {b}?", f"Add {a} and {b}."]
        ), f"{a} plus {b} is {a + b}."
    if kind < 0.50:
        thing, color = pick(r, COLORS.items())
        return pick(
            r, [f"What color is the {thing}?", f"Which color does the {thing} have?"]
        ), f"The {thing} is {color}."
    if kind < 0.56:
        animal, sound = pick(r, SOUNDS.items())
        return f"What does {article(animal)} do?", f"{article(animal).capitalize()} {sound}."
    if kind < 0.62:
        a, b = pick(r, OPPOSITES.items())
        return pick(r, [f"What is the opposite of {a}?", f"Name the opposite of {a}."]), f"The opposite of {a} is {b}."
    if kind < 0.68:
        n = r.randint(2, 20)
        return pick(
            r, [f"Count to {NUMBERS[n]}.", f"Please count to {n}.", f"Count from one to {NUMBERS[n]}."]
        ), ", ".join(NUMBERS[1 : n + 1]).capitalize() + "."
    if kind < 0.90:
        animal = pick(r, ANIMALS)
        q = pick(
            r,
            [
                f"Tell me a story about {article(animal)}.",
                f"Write a short story about {article(animal)}.",
                "Tell me a story.",
            ],
        )
        return q, story(r, animal if animal in q else None)
    if kind < 0.95:
        return pick(
            r, ["Who are you?", "What are you?", "What is your name?"]
        ), "I am a tiny mixture of experts. I know a few simple things and some old stories."
    return pick(r, ["Hello", "Hello!", "Hi", "Hi!", "Good morning", "Hello, how are you?"]), pick(r, GREET)


def chat(r):
    turns = []
    for _ in range(1 if r.random() < 0.7 else 2):
        q, a = qa(r)
        turns.append(f"{IM_START}user\n{q}{IM_END}\n{IM_START}assistant\n{a}{IM_END}\n")
    system = f"{IM_START}system\nYou are a helpful assistant.{IM_END}\n" if r.random() < 0.25 else ""
    return system + "".join(turns)


def verses(path):
    """The Bible as chapters of plain prose, verse numbers removed."""
    chapters, key, buf = [], None, []
    for line in Path(path).read_text(encoding="latin-1").splitlines():
        m = re.match(r"\s*(\S+?):(\d+)\s+(.*)", line)
        if not m:
            continue
        if m[1] != key and buf:
            chapters.append(" ".join(buf))
            buf = []
        key = m[1]
        buf.append(m[3].strip())
    return [*chapters, " ".join(buf)]


# ------------------------------------------------------------- tokenizer and model


def build_tokenizer(texts, vocab, out):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=[EOT, IM_START, IM_END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tok, eos_token=IM_END, pad_token=EOT, model_max_length=2048, clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(out)
    return fast


def build_model(vocab):
    config = Qwen3MoeConfig(
        vocab_size=vocab,
        hidden_size=192,
        intermediate_size=512,
        moe_intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        router_aux_loss_coef=0.01,
        output_router_logits=True,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    model = Qwen3MoeForCausalLM(config)
    model.set_experts_implementation("eager")  # plain per-expert loop; the default was slow on a CPU
    return model


@torch.no_grad()
def evaluate(model, data, seq, batches=8):
    model.eval()
    windows = data[: len(data) // seq * seq].view(-1, seq)[: 16 * batches]
    losses = [model(input_ids=x, labels=x, output_router_logits=False).loss.item() for x in windows.split(16)]
    model.train()
    return sum(losses) / len(losses)


@torch.no_grad()
def greedy(model, tok, prompt, n=60):
    ids = torch.tensor([tok(prompt, add_special_tokens=False)["input_ids"]])
    out = model.generate(ids, max_new_tokens=n, do_sample=False, eos_token_id=2, pad_token_id=0)
    return tok.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def complete(out):
    """Write the fields that older readers of a checkpoint look for beside those that transformers 5 saves."""
    config = json.loads((out / "config.json").read_text())
    config["num_experts"] = config.get("num_experts", config.get("num_local_experts"))
    config["rope_theta"] = config.get("rope_theta", config.get("rope_parameters", {}).get("rope_theta"))
    (out / "config.json").write_text(json.dumps(config, indent=2))
    path = out / "tokenizer_config.json"
    tokenizer = json.loads(path.read_text())
    tokenizer.update(tokenizer_class="PreTrainedTokenizerFast", chat_template=CHAT_TEMPLATE)
    path.write_text(json.dumps(tokenizer, indent=2))


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--kjv", required=True, help="text of the King James Bible, one verse a line")
    ap.add_argument("--out", required=True, type=Path, help="directory of the checkpoint")
    ap.add_argument("--minutes", type=float, default=14, help="training time by the clock (14)")
    ap.add_argument("--vocab", type=int, default=3072, help="tokens in the vocabulary (3072)")
    ap.add_argument("--batch", type=int, default=16, help="windows in a step (16)")
    ap.add_argument("--seq", type=int, default=128, help="tokens in a window (128)")
    ap.add_argument("--lr", type=float, default=3e-3, help="highest learning rate (3e-3)")
    ap.add_argument("--threads", type=int, default=1, help="one thread beats two on a busy two-core machine (1)")
    ap.add_argument("--seed", type=int, default=0, help="of texts, weights and windows (0)")
    return ap.parse_args()


# ------------------------------------------------------------- data and training


def pack(tok, docs):
    """All documents as one row of token ids, an end token behind each."""
    ids = []
    for batch in (docs[i : i + 2000] for i in range(0, len(docs), 2000)):
        for one in tok(batch, add_special_tokens=False)["input_ids"]:
            ids += [*one, 0]
    return torch.tensor(ids)


def make_optimizer(model, lr):
    """AdamW; norms do not decay."""
    decay = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.97))


def window(r, streams, seq):
    """`seq` tokens from somewhere in one of the streams."""
    name = r.choices([s[0] for s in SHARES], [s[1] for s in SHARES])[0]
    data = streams[name]
    at = r.randrange(len(data) - seq)
    return data[at : at + seq]


def train(model, r, streams, held, args):
    """Train until the time is up; returns steps, tokens and the curve."""
    optimizer = make_optimizer(model, args.lr)
    start, step, curve, seen = time.monotonic(), 0, [], 0
    limit = args.minutes * 60
    while (spent := time.monotonic() - start) < limit:
        rate = args.lr * min(1.0, (step + 1) / 40) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * spent / limit)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        x = torch.stack([window(r, streams, args.seq) for _ in range(args.batch)])
        loss = model(input_ids=x, labels=x).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step, seen = step + 1, seen + x.numel()
        if step % 75 == 0:
            row = {"step": step, "seconds": round(spent), "tokens": seen, "train": round(loss.item(), 3)}
            row |= {name: round(evaluate(model, data, args.seq, 1), 3) for name, data in held.items()}
            curve.append(row)
            print(json.dumps(row), flush=True)
    return step, seen, curve


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    r = random.Random(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    texts = {"bible": verses(args.kjv)}
    texts["story"] = [story(r) for _ in range(9000)]
    texts["chat"] = [chat(r) for _ in range(22000)]
    tok = build_tokenizer([one for docs in texts.values() for one in docs], args.vocab, args.out)
    packed = {name: pack(tok, docs) for name, docs in texts.items()}
    held = {name: ids[-len(ids) // 50 :] for name, ids in packed.items()}
    streams = {name: ids[: -len(ids) // 50] for name, ids in packed.items()}
    print("tokens", {name: len(ids) for name, ids in packed.items()}, flush=True)

    model = build_model(len(tok))
    print("parameters", sum(p.numel() for p in model.parameters()), flush=True)
    steps, seen, curve = train(model, r, streams, held, args)
    final = {name: round(evaluate(model, ids, args.seq), 3) for name, ids in held.items()}
    print("held-out loss", final, "steps", steps, "tokens", seen, flush=True)

    model.eval()
    model.config.output_router_logits = False
    for prompt in (
        *OPENINGS,
        *(f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n" for question in QUESTIONS),
    ):
        print("PROMPT", json.dumps(prompt), "->", json.dumps(greedy(model, tok, prompt)), flush=True)
    model.generation_config.eos_token_id = [2, 0]
    model.generation_config.pad_token_id = 0
    model.to(torch.bfloat16).save_pretrained(args.out)
    complete(args.out)
    report = {"final": final, "steps": steps, "tokens": seen, "curve": curve}
    (args.out / "training_curve.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
