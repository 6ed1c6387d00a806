"""The sections of an experiment with fixed keys: data, model, clients, server, evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from bartizan.lab.config.keys import ConfigError, key, shown
from bartizan.lab.data.loaders import DATASETS
from bartizan.lab.models.networks import MODELS

MIN_POSITIVE, MAX_MOMENTUM, MAX_STEP_SIZE = 1e-12, 0.999999, 1e38
UNTUNED_OPTIMISERS = ("sgd", "momentum")
OPTIMISERS = (*UNTUNED_OPTIMISERS, "prodigy", "dog", "adagrad-norm")


@dataclass(frozen=True)
class DataSettings:
    """The data set."""

    name: str = key(
        "fashion-mnist-mini", "which images or text; those that end in -mini are in the package", registry=DATASETS
    )
    folder: str = key("", "where their files are; not needed for those in the package")
    augment: bool = key(False, "crop and mirror the training images at random")
    resize: int = key(0, "scale images to this many pixels per side; 0 leaves them as they are", least=0, most=512)
    scaling: str = key(
        "own",
        "of pixels: by the training set's own mean and deviation, by ImageNet's, or (x - 127) / 128",
        one_of=("own", "imagenet", "symmetric"),
    )
    validation: float = key(
        0.0, "hold out this part of the training images and test on it, never on the test set", least=0.0, most=0.9
    )


@dataclass(frozen=True)
class ModelSettings:
    """The network that is trained."""

    name: str = key("cnn", "which network", registry=MODELS)
    norm: str = key("group", "its normalisation layers", one_of=("group", "batch", "none"))
    norm_momentum: float = key(
        0.0, "a batch's part in BatchNorm's running statistics; 0 takes the network's own", least=0.0, most=1.0
    )
    fitted: bool = key(True, "reduce small images later; if not, as published for 224 pixels")
    weights: str = key("", "first weights: a .pt, .pth or .safetensors file, or an installed package that has one")
    adapters: int = key(
        0, "train only LoRA adapters of this rank, on every linear layer; 0 trains all weights", least=0, most=4096
    )


@dataclass(frozen=True)
class ClientsSettings:
    """The clients, and their work in a round."""

    count: int = key(50, "how many clients there are", least=1, most=100_000)
    byzantine: float = key(0.3, "how many are Byzantine: a fraction, or a whole number such as 15", any_type=True)
    participation: float = key(1.0, "the fraction in each round, drawn anew", least=MIN_POSITIVE, most=1.0)
    batch: int = key(32, "images in a batch", least=1)
    work: str = key(
        "gradient",
        "one gradient, or `local` steps, or `local` epochs; after steps the update is the change of the model",
        one_of=("gradient", "steps", "epochs"),
    )
    local: int = key(1, "how many local steps or epochs", least=1, most=1_000_000)
    sends: str = key(
        "changes",
        "what attackers falsify after local steps: the change of the model, or its new weights",
        one_of=("changes", "weights"),
    )
    step_size: float = key(0.1, "of local steps", least=MIN_POSITIVE, most=MAX_STEP_SIZE)
    momentum: float = key(0.0, "of local steps", least=0.0, most=MAX_MOMENTUM)
    worker_momentum: float = key(
        0.0,
        "send a mean over rounds, this part of it the one sent last; 0 sends updates alone",
        least=0.0,
        most=MAX_MOMENTUM,
    )
    speed: float = key(
        0.0, "how many times longer the slowest client takes than the fastest; 0 makes all alike", least=0.0, most=1e6
    )
    precision: str = key(
        "float32", "of their passes; bfloat16 is faster on a GPU and less exact", one_of=("float32", "bfloat16")
    )
    compiled: bool = key(False, "one client after the other in compiled passes, on a GPU: half a minute first")
    trusted: int = key(100, "images that the server itself holds, for rules that need a trusted update", least=1)

    def __post_init__(self) -> None:
        wanted = "clients.byzantine must be a fraction from 0 up to below 1, such as 0.3, or a whole number of clients"
        b = self.byzantine
        if isinstance(b, bool) or not isinstance(b, (int, float)) or not 0 <= b < (self.count if is_count(b) else 1):
            raise ConfigError(f"{wanted} below clients.count = {self.count}; got {shown(b)}.")
        if self.sends == "weights" and self.work == "gradient":
            raise ConfigError(
                "clients.sends = 'weights' needs clients.work = 'steps' or 'epochs': a gradient has none."
            )
        if b == 0:
            object.__setattr__(self, "byzantine", 0.0)  # 0 and 0.0 are one experiment, with one id

    @property
    def n_byzantine(self) -> int:
        """Return f, the fraction rounded to whole clients, with at least one honest client left."""
        return (
            int(self.byzantine) if is_count(self.byzantine) else min(round(self.byzantine * self.count), self.count - 1)
        )

    @property
    def taking_part(self) -> int:
        """Return m, the number of clients per round."""
        return max(1, round(self.participation * self.count))


@dataclass(frozen=True)
class ServerSettings:
    """The server's use of the aggregated update."""

    optimiser: str = key("sgd", "all but the first two tune their step size themselves", one_of=OPTIMISERS)
    step_size: float = key(
        0.0,
        "0 takes the usual one: 0.1 for gradients, 1 for local steps; and 1 where it is tuned, as a factor",
        least=0.0,
        most=MAX_STEP_SIZE,
    )
    momentum: float = key(0.9, "of the optimiser momentum", least=0.0, most=MAX_MOMENTUM)
    schedule: str = key("constant", "how the step size changes over the rounds", one_of=("constant", "cosine"))
    by_size: bool = key(True, "weigh clients by how many images they hold, as the paper's objective does")
    buffer: int = key(0, "judge whenever so many clients have sent, without a barrier; 0 has rounds", least=0)
    remember: str = key(
        "no",
        "of a buffer: let the last update of absent clients take part in the judgement, or in the sum too",
        one_of=("no", "judge", "sum"),
    )
    staleness: str = key(
        "polynomial", "of a buffer: how age lowers a weight, 1 / sqrt(1 + age) or not", one_of=("polynomial", "none")
    )


@dataclass(frozen=True)
class EvaluationSettings:
    """The measurements beside the training."""

    every: int = key(5, "rounds from one test of the model to the next; the last round always has one", least=1)
    statistics: str = key(
        "running",
        "BatchNorm's, when the model is tested: the running ones, which updates carry, or those of each batch",
        one_of=("running", "batch"),
    )
    exact_weights: bool = key(True, "compare projected weights with exact ones in the rounds that are evaluated")


def is_count(byzantine: float) -> bool:
    """Return whether `byzantine` is a number of clients; 0.0 and 0.3 are fractions."""
    return isinstance(byzantine, int) and not isinstance(byzantine, bool)
