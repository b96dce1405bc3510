"""What the machine is: processors, memory and their container limits, disks, accelerators."""

from .devices import DeviceSurvey, survey_devices
from .fit import FitAnswer, fits
from .limits import MachineLimits, machine_limits
from .nvml import Nvml, NvmlFailure, NvmlMissing, open_nvml
from .storage import report_path

__all__ = ["DeviceSurvey", "FitAnswer", "MachineLimits", "Nvml", "NvmlFailure", "NvmlMissing", "fits"]
__all__ += ["machine_limits", "open_nvml", "report_path", "survey_devices"]
