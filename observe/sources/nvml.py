"""GPUs as NVIDIA's driver tells of them (NVML): a series for each number and GPU, units in the names.

`nvml_utilization_percent` is the share of time in which any kernel ran, full or not. `nvml_memory_used_bytes` is
without `nvml_memory_reserved_bytes`, the driver's own, where the driver tells them apart. What a GPU does not
support, or does not allow, is left out. Must not know what is done with the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pynvml

from observe.series import named
from observe.sources.base import SourceError

CLOCKS = {"sm": pynvml.NVML_CLOCK_SM, "memory": pynvml.NVML_CLOCK_MEM}
PCIE = {"rx": pynvml.NVML_PCIE_UTIL_RX_BYTES, "tx": pynvml.NVML_PCIE_UTIL_TX_BYTES}
REASONS = {
    "gpu_idle": pynvml.nvmlClocksEventReasonGpuIdle,
    "applications_clocks": pynvml.nvmlClocksEventReasonApplicationsClocksSetting,
    "sw_power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "sync_boost": pynvml.nvmlClocksEventReasonSyncBoost,
    "sw_thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "hw_power_brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    "display_clocks": pynvml.nvmlClocksEventReasonDisplayClockSetting,
}
ABSENT = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NoPermission)
Device = object  # a handle of NVML, for its functions alone
Number = tuple[str, dict[str, str], float]  # name, labels beside the GPU's, value


class Nvml:
    """All GPUs of this machine. The library is opened at the first read, and again after it has failed."""

    name = "NVML"

    def __init__(self) -> None:
        self._open = False

    def read(self) -> Mapping[str, float]:
        """Raises SourceError without a driver or when it refuses."""
        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
            return dict(self._all())
        except pynvml.NVMLError as error:
            self.close()
            raise SourceError(str(error)) from None

    def close(self) -> None:
        if self._open:
            self._open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return  # it is gone already

    def _all(self) -> Iterator[tuple[str, float]]:
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            for part in PARTS:
                try:
                    yield from (
                        (named(name, gpu=str(index), **labels), float(value)) for name, labels, value in part(device)
                    )
                except ABSENT:
                    continue


def _utilization(device: Device) -> Iterator[Number]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(device)
    yield "nvml_utilization_percent", {}, rates.gpu
    yield "nvml_memory_utilization_percent", {}, rates.memory


def _memory(device: Device) -> Iterator[Number]:
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    except ABSENT:
        memory = pynvml.nvmlDeviceGetMemoryInfo(device)  # of an older driver, which counts its own as used
    else:
        yield "nvml_memory_reserved_bytes", {}, memory.reserved
    yield "nvml_memory_used_bytes", {}, memory.used
    yield "nvml_memory_total_bytes", {}, memory.total


def _power(device: Device) -> Iterator[Number]:
    yield "nvml_power_watts", {}, pynvml.nvmlDeviceGetPowerUsage(device) / 1000
    yield "nvml_power_limit_watts", {}, pynvml.nvmlDeviceGetEnforcedPowerLimit(device) / 1000
    yield "nvml_power_default_limit_watts", {}, pynvml.nvmlDeviceGetPowerManagementDefaultLimit(device) / 1000


def _temperature(device: Device) -> Iterator[Number]:
    yield "nvml_temperature_celsius", {}, pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU)


def _clocks(device: Device) -> Iterator[Number]:
    for clock, kind in CLOCKS.items():
        yield "nvml_clock_mhz", {"clock": clock}, pynvml.nvmlDeviceGetClockInfo(device, kind)


def _highest_clocks(device: Device) -> Iterator[Number]:
    for clock, kind in CLOCKS.items():
        yield "nvml_clock_max_mhz", {"clock": clock}, pynvml.nvmlDeviceGetMaxClockInfo(device, kind)


def _throttled(device: Device) -> Iterator[Number]:
    # The older of two names for the same call: drivers before 535 know only this one.
    reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
    for reason, bit in REASONS.items():
        yield "nvml_clocks_held_down", {"reason": reason}, bool(reasons & bit)


def _pcie(device: Device) -> Iterator[Number]:
    """The driver looks for 20 ms, each; it counts in KB."""
    for direction, counter in PCIE.items():
        speed = 1000 * pynvml.nvmlDeviceGetPcieThroughput(device, counter)
        yield "nvml_pcie_bytes_per_second", {"direction": direction}, speed


def _link(device: Device) -> Iterator[Number]:
    """As PCIe runs now, slower while idle, and at most with this card in this slot."""
    yield "nvml_pcie_generation", {"of": "now"}, pynvml.nvmlDeviceGetCurrPcieLinkGeneration(device)
    yield "nvml_pcie_generation", {"of": "most"}, pynvml.nvmlDeviceGetMaxPcieLinkGeneration(device)
    yield "nvml_pcie_lanes", {"of": "now"}, pynvml.nvmlDeviceGetCurrPcieLinkWidth(device)
    yield "nvml_pcie_lanes", {"of": "most"}, pynvml.nvmlDeviceGetMaxPcieLinkWidth(device)


def _persistence(device: Device) -> Iterator[Number]:
    """1 where the driver keeps a card up that nobody uses."""
    yield "nvml_persistence_mode", {}, pynvml.nvmlDeviceGetPersistenceMode(device)


def _driver(_: Device) -> Iterator[Number]:
    """1; the labels say which driver it is, and the highest CUDA that it takes."""
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    labels = {"driver": pynvml.nvmlSystemGetDriverVersion(), "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}"}
    yield "nvml_driver_info", labels, 1.0


PARTS: tuple[Callable[[Device], Iterator[Number]], ...] = (
    _utilization,
    _memory,
    _power,
    _temperature,
    _clocks,
    _highest_clocks,
    _throttled,
    _pcie,
    _link,
    _persistence,
    _driver,
)
