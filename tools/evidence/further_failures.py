"""Failures that are told by their words beside those numbered in docs/failures.md: devices, peers, files, libraries.

They are tried after the numbered rows, in this order.
"""

from .failure_row import ask, keep, row

_OTHER_RANK = keep("read the other ranks' logs: the one that ended first has the cause")

FURTHER_FAILURES = (
    row(
        None,
        "kernel_input_invalid",
        r"Assertion `(?:.*(?:input_val|probabilit|cumdist|cumulative|target_val|p[01]\b))",
        "a GPU kernel was given a value that it does not allow, such as a probability that is NaN or outside 0 to 1",
        keep("check the values before that call: NaN, infinite, or outside 0 to 1"),
        keep("run once on CPU for the exact place", device="cpu"),
    ),
    row(
        21,
        "index_out_of_range",
        r"Assertion `.*(?:n_classes|srcIndex|index|idx|num_embeddings|size)",
        "a label or token id is outside the range of the layer that looks it up",
        keep("compare the largest label or token id with num_classes or the vocabulary size"),
        keep("run once on CPU for the exact place", device="cpu"),
    ),
    row(
        None,
        "collective_mismatch",
        r"mismatch between collectives|DDP expects same model across all ranks|"
        r"(?:shape|size) mismatch.*across ranks|params? .*in process \d+ with sizes",
        "the ranks did not call the same collective, or do not hold the same model",
        keep("let each rank build the same model and take the same path through the code"),
        keep("run once with TORCH_DISTRIBUTED_DEBUG=DETAIL", TORCH_DISTRIBUTED_DEBUG="DETAIL"),
    ),
    row(
        7,
        "collective_timeout",
        r"failed to pass monitoredBarrier|Heartbeat monitor timed out|watchdog hang",
        "ranks waited for another one in a collective, and it did not come",
        keep("look at the log and the data of the rank that did not come; a longer timeout alone is no cure"),
    ),
    row(
        None,
        "address_not_resolved",
        r"gaierror|Name or service not known|Temporary failure in name resolution|nodename nor servname|"
        r"errno: 97\b|Address family not supported",
        "a host name or address could not be resolved",
        keep("give the address of the main node as its hosts resolve it; try `getent hosts NAME` on every node"),
        keep("offline, download models and data first", HF_HUB_OFFLINE="1"),
    ),
    row(
        11,
        "rendezvous_incomplete",
        r"client socket has (?:timed out|failed to connect)|DistStoreError|wait timeout after \d+ ?ms, keys|"
        r"ConnectionRefusedError|Connection refused",
        "the other side of a connection was not there: the main node's store, most often",
        keep("check address, port and firewall from every node, and that the main node still runs"),
        _OTHER_RANK,
    ),
    row(
        None,
        "port_not_allowed",
        r"failed to (?:bind|listen).*(?:errno: 13|Permission denied)",
        "the process may not listen on that port; ports below 1024 are the system's",
        keep("use another port, or 0 for a free one", master_port="0"),
    ),
    row(
        None,
        "nccl_cuda_error",
        r"ncclUnhandledCudaError|NCCL.*unhandled cuda error|ncclInternalError|ncclInvalidArgument|ncclInvalidUsage",
        "a CUDA call or a check inside NCCL failed; an earlier error on the same device is the usual cause",
        keep("run once with NCCL_DEBUG=INFO", NCCL_DEBUG="INFO"),
        _OTHER_RANK,
    ),
    row(
        39,
        "gpu_hardware",
        r"uncorrectable NVLink|\bhardware stack error|GPU is lost|Unable to determine the device handle|"
        r"unrecoverable error.*(?:NVLink|ECC)|\bcontained ECC\b",
        "the GPU, its memory or its links are faulty",
        keep("drain the node and run on another"),
    ),
    row(
        None,
        "driver_mismatch",
        r"LibRmVersionMismatch|Driver/library version mismatch|unsupported toolchain|unsupported PTX|"
        r"system has unsupported display driver|\bError 80[34]\b|forward compatibility was attempted",
        "the driver and the CUDA libraries above it do not fit each other",
        keep("reload the driver or restart the node after an update of it; else a torch build for this driver"),
    ),
    row(
        None,
        "gpu_not_available",
        r"No CUDA GPUs are available|No HIP GPUs|devices? (?:are|is) busy or unavailable|invalid device ordinal|"
        r"CUDA unknown error|Unexpected error from cudaGetDeviceCount|CUDA error: initialization error|"
        r"system not yet initialized|no CUDA-capable device",
        "the process could not use the GPU that it asked for: hidden, absent, held by another process, or not ready",
        keep("compare CUDA_VISIBLE_DEVICES and the number of processes with what inspect_environment shows"),
        keep("in exclusive mode, or with one MIG instance, one process has the device to itself"),
        keep("error 802: start nvidia-fabricmanager on the node"),
    ),
    row(
        None,
        "cuda_in_forked_process",
        r"Cannot re-initialize CUDA in forked subprocess",
        "CUDA was used in the parent and again in a forked child",
        keep("touch the GPU only in the worker's main process; DataLoader workers return CPU tensors"),
        keep("start the children by spawn", multiprocessing_context="spawn"),
    ),
    row(
        31,
        "no_kernel_image",
        r"HIP error: invalid device function|CUDA error: invalid device function",
        "this torch build has no kernels for this GPU",
        keep("install a torch build for this GPU's architecture"),
    ),
    row(
        None,
        "kernel_resources",
        r"OutOfResources|out of resource: |too many resources requested for launch",
        "a compiled GPU kernel needs more shared memory or registers than this device has; this is not GPU memory",
        keep("smaller tiles or fewer stages for that kernel, or turn its fusion or compile off"),
    ),
    row(
        None,
        "cuda_kernel_failed",
        r"misaligned address|unspecified launch failure|(?:CUBLAS|CUDNN|CUSOLVER|CUFFT|HIPBLAS|MIOPEN)_?STATUS_\w+|"
        r"(?:CUBLAS|CUDNN)_STATUS|unable to find (?:a valid cuDNN|an engine)|CUDA error: the launch timed out|"
        r"CUDA error: invalid (?:argument|configuration)|(?:CUDA|HIP) error: ",
        "a GPU call failed; it is reported late, so the line that names it need not be the one that caused it, and "
        "memory that ran out or an index out of range shows itself so too",
        keep("run once with blocking launches", CUDA_LAUNCH_BLOCKING="1"),
        keep("run once on CPU for the exact place", device="cpu"),
    ),
    row(
        5,
        "non_finite_values",
        r"\bloss\b.{0,40}\b(?:nan|inf|infinite|non-?finite|not finite)\b|\b(?:nan|inf|non-?finite)\b.{0,30}\bloss\b|"
        r"returned nan values|found nan\b|is non-finite, so it cannot be clipped|probability tensor contains|"
        r"Input .{0,20}contains (?:NaN|infinity)|found invalid values|\b(?:nan|inf) or (?:nan|inf)\b|"
        r"\b(?:gradients?|grad[_ ]norm|weights?|parameters?|logits)\b.{0,40}\b(?:nans?|infs?|non-?finite)\b",
        "a value is NaN or infinite, and the script stopped for it",
        keep("resume from the last good checkpoint and look at the batch of that step"),
        ask("lower the learning rate", learning_rate="lower"),
        ask("turn gradient clipping on", max_grad_norm="1.0"),
    ),
    row(
        None,
        "read_only_file_system",
        r"\[Errno 30\]|Read-only file system",
        "the output lies on a file system that is mounted read-only",
        keep("write elsewhere", output_dir="elsewhere"),
    ),
    row(
        None,
        "permission_denied",
        r"PermissionError|\[Errno 13\]|\[Errno 1\]|Permission denied|Operation not permitted",
        "the job may not read or write a file there",
        keep("give the job's user the rights, or name another path"),
    ),
    row(
        None,
        "storage_fault",
        r"\[Errno 5\]|\[Errno 116\]|\[Errno 121\]|Stale (?:NFS )?file handle|Input/output error|Remote I/O error",
        "the file system below a file failed or went away, as when a network mount is replaced or a disk is faulty",
        keep("look at the mount and the kernel log of that node; resume from the last checkpoint"),
    ),
    row(
        None,
        "too_many_processes",
        r"can't start new thread|\[Errno 11\]|pthread_create failed|Resource temporarily unavailable",
        "no further process or thread could be started: a limit on their number (ulimit -u, pids.max) is reached",
        keep("use fewer DataLoader workers and threads", num_workers="fewer", OMP_NUM_THREADS="1"),
        keep("raise ulimit -u or the container's pids limit"),
    ),
    row(
        None,
        "library_missing",
        r"cannot open shared object file|GLIBC(?:XX)?_\d|CXXABI_\d|DLL load failed|numpy\.dtype size changed|"
        r"Numpy is not available|compiled using NumPy 1|binary incompatibility",
        "a native library is missing or of another version than the package was built for",
        keep("install versions of the packages that fit each other into the plan's python, then make a new plan"),
    ),
    row(
        None,
        "extension_not_built",
        r"CUDAMismatchException|Error building extension|CUDA_HOME environment variable is not set|Ninja is required|"
        r"does not match the version torch was compiled with|nvcc.*not found",
        "a CUDA or C++ extension could not be built on this machine",
        keep("install a CUDA toolkit of torch's version, ninja and a compiler, or a ready-built wheel"),
    ),
    row(
        33,
        "compile_toolchain",
        r"torch\._dynamo\.exc\.|InternalTorchDynamoError",
        "torch.compile could not compile",
        keep("turn compile off", compile="false"),
    ),
    row(
        None,
        "hub_unreachable",
        r"We couldn't connect to|LocalEntryNotFoundError|RepositoryNotFoundError|RevisionNotFoundError|"
        r"EntryNotFoundError|OfflineModeIsEnabled|Max retries exceeded|SSLError|CERTIFICATE_VERIFY_FAILED|ReadTimeout|"
        r"ConnectTimeout|RemoteDisconnected|IncompleteRead|5\d\d Server Error|Network is unreachable|No route to host",
        "a model or data set could not be fetched: no such name, no network, or a server that did not answer",
        keep("check the name and revision; download on a machine with network first, then run offline"),
        keep("run offline with what is in the cache", HF_HUB_OFFLINE="1"),
    ),
    row(
        None,
        "checkpoint_damaged",
        r"invalid load key|Ran out of input|unexpected EOF|pickle data was truncated|MetadataIncompleteBuffer|"
        r"InvalidHeaderLength|SafetensorError|unexpected pos \d+ vs \d+|BadZipFile|CRC-?32? check failed",
        "a file is cut off or damaged, or holds something else (an LFS pointer begins with 'v')",
        keep("resume from the checkpoint before it, or fetch the file again"),
        keep("check the disk's free space: a full disk cuts files"),
    ),
    row(
        None,
        "shape_mismatch",
        r"shapes cannot be multiplied|must match the size of tensor|must match the existing size|shape '.*' is invalid|"
        r"size mismatch,|Sizes of tensors must match|expected input.* to have \d+ channels|"
        r"The expanded size of the tensor",
        "two tensors of one operation have shapes that do not fit",
        keep("compare the shapes that the message gives with the model's configuration and one batch of the data"),
    ),
    row(
        None,
        "autograd_misuse",
        r"does not require grad and does not have a grad_fn|backward through the graph a second time|"
        r"modified by an inplace operation|mark a variable ready only once",
        "the backward pass is not possible on this graph",
        keep("one backward per forward; no in-place change of what it needs; frozen parts without a loss of their own"),
        keep("with activation checkpointing, use_reentrant=False", use_reentrant="false"),
    ),
    row(
        None,
        "not_picklable",
        r"Can't pickle|cannot pickle|Can't get attribute|before the current process has finished its bootstrapping",
        "a spawned process could not be given its function or data",
        keep("define functions at module level, and start the script under `if __name__ == '__main__':`"),
    ),
    row(
        None,
        "data_unreadable",
        r"UnicodeDecodeError|JSONDecodeError|ArrowInvalid|ParserError|UnidentifiedImageError|DatasetGenerationError",
        "a data file does not hold what its reader expects",
        keep("validate_inputs names the file, the line and the fault"),
    ),
)
