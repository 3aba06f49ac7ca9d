"""Pairs for rules about folders, texts, backends, tensors and warm-up."""

from __future__ import annotations

from pathlib import Path

from lint_pairs import INPUT, MODEL, OUTPUT, RUNS, Files, Pair, config, model

GOOD = model(config())
CONFIG = {"NAME/config.pbtxt": config()}
ROOT = Path(__file__).resolve().parent.parent
CHAT_MODEL = (ROOT / "decode" / "served" / "model.py").read_text()
CHAT = {"NAME/1/model.py": CHAT_MODEL, "NAME/1/config.json": "{}"}
ENGINE_MODEL = (ROOT / "engines" / "served" / "model.py").read_text()


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


def tensors(given: str, wanted: str = OUTPUT) -> Files:
    return model(config(tensors=f"input [ {{ {given} }} ]\n{wanted}"))


def warm(inputs: str, size: int = 1, **files: str) -> Files:
    sample = f'model_warmup [ {{ name: "first" batch_size: {size} {inputs} }} ]\n'
    return model(config(sample, tensors=INPUT + RUNS), **files)


def value(source: str = "zero_data: true", kind: str = "TYPE_INT32", dims: str = "1", key: str = "in") -> str:
    return f'inputs {{ key: "{key}" value: {{ data_type: {kind} dims: [ {dims} ] {source} }} }}'


FOLDERS = [
    Pair("config-unreadable", {"NAME/config.pbtxt": None, "NAME/1/model.py": MODEL}, GOOD, "kills"),
    Pair(
        "stray-folder", {**model(config(), "x"), "NAME/notes.txt": ""}, GOOD, "refused", "Could not determine backend"
    ),
    Pair("name-mismatch", model('name: "other"\n' + config()), GOOD, "refused", "directory name must equal model name"),
    Pair("no-version", CONFIG, GOOD, "refused", "at least one version must be available"),
    Pair("version-name", {**GOOD, "NAME/latest/model.py": ""}, GOOD, "taken"),
    Pair(
        "version-policy",
        model(config("version_policy { specific { versions: [ 3 ] } }")),
        model(config("version_policy { specific { versions: [ 1 ] } }")),
        "refused",
        "at least one version must be available under the version policy",
    ),
    Pair("version-missing", model(config("version_policy { specific { versions: [ 1, 3 ] } }")), GOOD, "taken"),
    Pair(
        "old-version",
        {**GOOD, "NAME/2/model.py": MODEL},
        {**model(config("version_policy { all {} }")), "NAME/2/model.py": MODEL},
        "taken",
    ),
    Pair("no-model-file", {**CONFIG, "NAME/1/main.py": MODEL}, GOOD, "hangs", "Python model file not found"),
]
TEXTS = [
    Pair("parse", model(config("dynamic_batching {")), GOOD, "refused", "failed to read text proto"),
    Pair("unknown-field", model(config("max_queue: 3")), GOOD, "refused", "failed to read text proto"),
    Pair(
        "two-schedulers",
        model(config("dynamic_batching {}\nsequence_batching {}")),
        model(config("dynamic_batching {}")),
        "refused",
        "failed to read text proto",
    ),
    Pair(
        "placeholder",
        model(config().replace("size: 4", "size: ${size}")),
        GOOD,
        "refused",
        "failed to read text proto",
    ),
    Pair("placeholder-text", model(config(parameter("a", "${b}"))), model(config(parameter("a", "b"))), "taken"),
    Pair(
        "duplicate-key",
        model(config(parameter("a", "first") + parameter("a", "last"))),
        model(config(parameter("a", "first") + parameter("b", "last"))),
        "taken",
    ),
    Pair(
        "not-utf8",
        model(config(parameter("a", "gr\udcf6\udcdfe"))),
        model("# gr\udcf6\udcdfe\n" + config(parameter("a", "größe"))),
        "taken",
        "contains invalid UTF-8 data",
    ),
    Pair(
        "new-field",
        model(config('model_metrics { metric_control { metric_identifier { family: "x" } } }')),
        GOOD,
        "refused",
        "failed to read text proto",
    ),
]
BACKENDS = [
    Pair(
        "no-backend",
        {"NAME/config.pbtxt": config(backend=""), "NAME/1/main.py": MODEL},
        model(config(backend="")),
        "refused",
        "Could not determine backend",
    ),
    Pair(
        "platform",
        {"NAME/config.pbtxt": config(backend='platform: "tensorrt"\n'), "NAME/1/model.plan": ""},
        {"NAME/config.pbtxt": config(backend='platform: "tensorrt_plan"\n'), "NAME/1/model.plan": ""},
        "refused",
        "unexpected platform type 'tensorrt'",
    ),
    Pair(
        "backend-name",
        {"NAME/config.pbtxt": config(backend='backend: "onnx"\n'), "NAME/1/model.onnx": ""},
        {"NAME/config.pbtxt": config(backend='backend: "onnxruntime"\n'), "NAME/1/model.onnx": ""},
        "refused",
        "unable to find backend library for backend 'onnx'",
    ),
    Pair(
        "label-file",
        model(config(tensors=INPUT + OUTPUT.replace("dims", 'label_filename: "l.txt" dims'))),
        model(config(tensors=INPUT + OUTPUT.replace("dims", 'label_filename: "labels" dims')), labels="cat\n"),
        "refused",
        "failed to open text file for read",
    ),
    Pair(
        "environment-file",
        model(config(parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/env.tar.gz"))),
        model(config(parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/env")), env=""),
        "refused",
        "Failed to get the canonical path",
    ),
    Pair("python-syntax", {**CONFIG, "NAME/1/model.py": "def (:\n"}, GOOD, "refused", "SyntaxError: invalid syntax"),
    Pair(
        "python-class",
        {**CONFIG, "NAME/1/model.py": "class Model:\n    pass\n"},
        GOOD,
        "refused",
        "has no attribute 'TritonPythonModel'",
    ),
    Pair("optimization-ignored", model(config("optimization { cuda { graphs: true } }")), GOOD, "taken"),
    Pair(
        "chat-parameter",
        {"NAME/config.pbtxt": config(parameter("max_sequences", "8")), **CHAT},
        {"NAME/config.pbtxt": config(parameter("max_num_seqs", "8")), **CHAT},
        "refused",
        "parameters.max_sequences: unknown",
    ),
    Pair(
        "engine-files",
        {**CONFIG, "NAME/1/model.py": ENGINE_MODEL},
        {**CONFIG, "NAME/1/model.py": ENGINE_MODEL, "NAME/1/engine.json": "{}"},
        "refused",
        "holds no engine; run gapless build",
    ),
]
TYPED = "data_type: TYPE_INT32"
TENSORS = [
    Pair("tensor-name", tensors(f"{TYPED} dims: [ 1 ]"), GOOD, "refused", "model input must specify 'name'"),
    Pair("tensor-type", tensors('name: "in" dims: [ 1 ]'), GOOD, "refused", "must specify 'data_type'"),
    Pair(
        "tensor-dims",
        tensors(f'name: "in" {TYPED} dims: [ 0 ]'),
        tensors(f'name: "in" {TYPED} dims: [ -1 ]'),
        "refused",
        "dimension must be integer >= 1, or -1",
    ),
    Pair(
        "duplicate-input",
        model(config(tensors=INPUT + INPUT + OUTPUT)),
        model(config(tensors=INPUT + INPUT.replace('"in"', '"b"') + OUTPUT)),
        "taken",
    ),
    Pair(
        "reshape",
        tensors(f'name: "in" {TYPED} dims: [ 4 ] reshape {{ shape: [ 3 ] }}'),
        tensors(f'name: "in" {TYPED} dims: [ 4 ] reshape {{ shape: [ 2, 2 ] }}'),
        "refused",
        "has different size for dims and reshape",
    ),
    Pair("no-tensors", model(config(tensors=INPUT)), GOOD, "taken"),
    Pair(
        "batch-in-dims",
        tensors(f'name: "in" {TYPED} dims: [ -1, 3, 2, 2 ]'),
        tensors(f'name: "in" {TYPED} dims: [ 3, 2, 2 ]'),
        "taken",
    ),
]
WARM = [
    Pair("warmup-input", warm(""), warm(value()), "refused", "missing required input(s)"),
    Pair("warmup-unknown", warm(value() + value(key="other")), warm(value()), "taken"),
    Pair("warmup-type", warm(value(kind="TYPE_FP32")), warm(value()), "refused", "data-type is 'FP32'"),
    Pair("warmup-dims", warm(value(dims="7")), warm(value()), "refused", "unexpected shape for input 'in'"),
    Pair("warmup-data", warm(value("")), warm(value()), "refused", "to have input_data_type set"),
    Pair(
        "warmup-file",
        warm(value('input_data_file: "ones"')),
        warm(value('input_data_file: "ones"'), warmup__ones="1234"),
        "refused",
        "failed to open text file for read",
    ),
    Pair("warmup-batch", warm(value(), size=5), warm(value(), size=4), "kills"),
    Pair("warmup-none", warm(value(), size=0), warm(value()), "taken"),
]
PAIRS = FOLDERS + TEXTS + BACKENDS + TENSORS + WARM
