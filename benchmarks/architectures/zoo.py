"""All architectures by name, of the sizes that are measured."""

from __future__ import annotations

from benchmarks.architectures.branches import Inception, Video
from benchmarks.architectures.images import DiffusionUnet, Generator, Style
from benchmarks.architectures.language import RotaryGpt, Translator
from benchmarks.architectures.layers import Architecture
from benchmarks.architectures.sequences import T5, LongLstm, MemoryScan, SelectiveScan, Speech, Wavenet
from benchmarks.architectures.tables import Dlrm, Experts, Flow, Graph
from benchmarks.architectures.vision import Aspp, ConvNext, Dqn, InvertedResiduals, Vit

ZOO: dict[str, Architecture] = {
    "dqn": Dqn(),
    "deeplab-aspp": Aspp(),
    "style-transfer": Style(),
    "mobilenetv3": InvertedResiduals("hardswish", "hardsigmoid"),
    "efficientnet": InvertedResiduals("silu", "sigmoid"),
    "convnext": ConvNext(),
    "inception": Inception(),
    "video": Video(),
    "vit": Vit(),
    "dcgan": Generator(),
    "diffusion-unet": DiffusionUnet(),
    "gru-ctc": Speech(),
    "lstm-500": LongLstm(),
    "wavenet": Wavenet(),
    "t5": T5(),
    "rotary-gpt": RotaryGpt(),
    "translator": Translator(),
    "mamba-scan": SelectiveScan(),
    "ntm-scan": MemoryScan(),
    "experts": Experts(),
    "graph": Graph(),
    "dlrm": Dlrm(),
    "flow": Flow(),
}
