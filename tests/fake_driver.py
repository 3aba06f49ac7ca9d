"""NVIDIA's driver as its Python binding has it, with numbers that a test knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest


@dataclass
class FakeDriver:
    """Two GPUs; the second is older: no second version of the memory call, no PCIe counters. Fails while `lost`."""

    lost: bool = False
    calls: list[str] = field(default_factory=list)

    def fake(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in dir(self):
            if name.startswith("nvml"):
                monkeypatch.setattr(pynvml, name, getattr(self, name))

    def nvmlInit(self) -> None:
        self.calls.append("init")
        if self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    def nvmlShutdown(self) -> None:
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:
        if self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:
        return SimpleNamespace(gpu=95, memory=40)

    def nvmlDeviceGetMemoryInfo(self, gpu: int, version: int | None = None) -> Any:
        if gpu and version:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(used=62 * 10**9, total=80 * 10**9, reserved=5 * 10**8)

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        return 312_500

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: int) -> int:
        return 400_000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: int) -> int:
        return 450_000

    def nvmlDeviceGetMaxClockInfo(self, gpu: int, clock: int) -> int:
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}[clock]

    def nvmlDeviceGetCurrPcieLinkGeneration(self, gpu: int) -> int:
        return 4

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: int) -> int:
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: int) -> int:
        return 8

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: int) -> int:
        return 16

    def nvmlDeviceGetPersistenceMode(self, gpu: int) -> int:
        if gpu:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return pynvml.NVML_FEATURE_ENABLED

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12080

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> int:
        return 71

    def nvmlDeviceGetClockInfo(self, gpu: int, clock: int) -> int:
        return {pynvml.NVML_CLOCK_SM: 1410, pynvml.NVML_CLOCK_MEM: 1215}[clock]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: int) -> int:
        return 0x4 | 0x40  # software power cap, hardware thermal slow-down

    def nvmlDeviceGetPcieThroughput(self, gpu: int, counter: int) -> int:
        if gpu:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return {pynvml.NVML_PCIE_UTIL_TX_BYTES: 3, pynvml.NVML_PCIE_UTIL_RX_BYTES: 12_000_000}[counter]
