"""The failures that are recognised by their words: one row each, in the order in which they are tried.

`row` is the number in docs/failures.md; rows without one are cases seen since. A pattern is searched in the line that
states the failure (an exception's last line, or a message of the engine or the kernel), never in whole logs: a test
name, a comment or a data row that quotes a failure is none.
"""

from .failure_row import FailurePattern
from .failure_row import ask as _ask
from .failure_row import keep as _keep
from .failure_row import row as _row
from .further_failures import FURTHER_FAILURES

SMALLER_BATCH = (
    _keep(
        "halve the micro-batch and double the accumulation: the global batch stays",
        micro_batch_size="half",
        gradient_accumulation_steps="double",
    ),
    _keep("turn activation checkpointing on", activation_checkpointing="true"),
    _keep("shard the model over the ranks", strategy="fsdp2"),
    _ask("shorten the sequences", max_sequence_length="shorter"),
)
EVALUATION_MEMORY = (
    _keep("use a smaller evaluation batch; the training batch stays", per_device_eval_batch_size="half"),
    _keep("move logits to the CPU as they come", eval_accumulation_steps="1"),
    _keep("reduce logits to what the metric needs before they are kept", preprocess_logits_for_metrics="argmax"),
)
LEARNING_RATE = _ask("lower the learning rate", learning_rate="lower")
CLIPPING = _ask("turn gradient clipping on", max_grad_norm="1.0")
_BF16 = _ask("train in bf16 instead of fp16", mixed_precision="bf16")

# Forms of "out of memory" by place, and what the place is called. The first that fits counts.
OUT_OF_MEMORY = (
    _row(
        12,
        "shared_memory",
        r"insufficient shared memory|bus error.*worker|worker.*bus error|</torch_[^>]*>|"
        r"dataloader.*out of shared memory|/dev/shm",
        "the shared memory (/dev/shm) of the DataLoader workers is full",
        _keep("enlarge /dev/shm (docker: --shm-size)"),
        _keep("use fewer DataLoader workers", num_workers="fewer"),
    ),
    _row(
        1,
        "out_of_memory_cublas",
        r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_ALLOC_FAILED|"
        r"cusparse\w*_ALLOC_FAILED",
        "the GPU had no memory left for a cuBLAS/cuDNN workspace",
        *SMALLER_BATCH,
    ),
    _row(
        1,
        "out_of_memory_nccl",
        r"NCCL.*out of memory|ncclUnhandledCudaError.*out of memory",
        "the GPU had no memory left for NCCL's buffers",
        *SMALLER_BATCH,
    ),
    _row(
        1,
        "out_of_memory_gpu",
        r"(?:CUDA|HIP|XPU)(?: driver)?(?: error:| failure \d+:)? '?out of memory|MPS backend out of memory|"
        r"cuda runtime error \(2\)|cudaErrorMemoryAllocation|hipErrorOutOfMemory|"
        r"(?<!ray\.exceptions\.)OutOfMemoryError|cudaMalloc.*out of memory|RESOURCE_EXHAUSTED",
        "the GPU allocator ran out of memory",
        *SMALLER_BATCH,
    ),
    _row(
        None,
        "out_of_memory_fork",
        r"\[Errno 12\] Cannot allocate memory|fork.*Cannot allocate memory",
        "the operating system could not give memory to a new process (fork) or mapping",
        _keep("use fewer DataLoader workers", num_workers="fewer"),
        _keep("check the memory limit of the container or job"),
    ),
    _row(
        None,
        "out_of_memory_host",
        r"DefaultCPUAllocator: (?:can't|not enough)|not enough memory: you tried|ArrayMemoryError|"
        r"Unable to allocate .* for an array|std::bad_alloc|^MemoryError|Out of memory: Killed process|"
        r"oom[-_]kill|ray\.exceptions\.OutOfMemoryError|low on memory|^srun: error: .*Out Of Memory",
        "the host had no memory left",
        _keep("load less at once, or stream the data"),
        _keep("use fewer DataLoader workers", num_workers="fewer"),
    ),
)

FAILURE_PATTERNS = (
    *OUT_OF_MEMORY,
    _row(
        14,
        "dataloader_worker_killed",
        r"DataLoader worker \(pid.*(?:is killed by signal|exited unexpectedly)",
        "a DataLoader worker was killed, most often by the kernel for want of host memory",
        _keep("use fewer workers and less prefetching", num_workers="fewer"),
        _keep("give the job more host memory"),
    ),
    _row(
        None,
        "half_parameters_with_fp16_scaling",
        r"Attempting to unscale FP16 gradients",
        "the model's parameters are half precision already while fp16 gradient scaling is on",
        _keep("load the model in float32; autocast does the rest", torch_dtype="float32"),
        _BF16,
    ),
    _row(
        6,
        "loss_scale_at_minimum",
        r"loss scale already at minimum|Minimum loss scale reached",
        "fp16 gradients overflowed until the loss scale reached its minimum",
        _BF16,
        LEARNING_RATE,
    ),
    _row(
        9,
        "duplicate_gpu",
        r"Duplicate GPU detected",
        "two ranks use the same device",
        _keep("one device a rank: set the device from LOCAL_RANK"),
        _keep("start no more processes than devices", num_processes="fewer"),
    ),
    _row(
        10,
        "address_in_use",
        r"Address already in use|EADDRINUSE|\[Errno 98\]|errno: 98",
        "the rendezvous port is taken",
        _keep("use another port, or 0 for a free one", master_port="0"),
    ),
    _row(
        11,
        "rendezvous_incomplete",
        r"\b\d+/\d+ (?:clients|workers|nodes?) joined|RendezvousTimeoutError|"
        r"rendezvous.*tim(?:ed )?e?-?out|failed to connect to .*(?:TCPStore|master)",
        "not all nodes came to the rendezvous",
        _keep("check address, port and firewall from every node"),
        _keep("check the number of nodes", num_nodes="as started"),
    ),
    _row(
        8,
        "nccl_system_error",
        r"ncclSystemError|NCCL.*unhandled system error|ibv_\w+ failed|Call to ibv",
        "NCCL failed in the network or the system below it",
        _keep("name the interface", NCCL_SOCKET_IFNAME="eth0"),
        _keep("try without InfiniBand", NCCL_IB_DISABLE="1"),
        _keep("run once with NCCL_DEBUG=INFO", NCCL_DEBUG="INFO"),
    ),
    _row(
        13,
        "too_many_open_files",
        r"Too many open files|\[Errno 24\]|received 0 items of ancdata",
        "the process may open no more files",
        _keep("raise ulimit -n"),
        _keep("share tensors through files", sharing_strategy="file_system"),
    ),
    _row(
        18,
        "quota_exceeded",
        r"\[Errno 122\]|Disk quota exceeded",
        "the quota of the output directory's file system is used up",
        _keep("free space, or write elsewhere", output_dir="elsewhere"),
    ),
    _row(
        17,
        "disk_full",
        r"\[Errno 28\]|No space left on device|PytorchStreamWriter failed|\[Errno 27\]|File too large|"
        r"file write failed",
        "the disk of the output directory is full: a file could not be written whole",
        _keep("free space, or write elsewhere", output_dir="elsewhere"),
        _keep("keep fewer checkpoints", save_total_limit="1"),
    ),
    _row(
        19,
        "access_denied",
        r"gated repo|GatedRepoError|401 Client Error|403 Client Error|401 Unauthorized|403 Forbidden|"
        r"Invalid username or password",
        "the hub refused access to a model or data set",
        _keep("log in, or ask its owner for access"),
    ),
    _row(
        20,
        "too_many_requests",
        r"429 Client Error|Too Many Requests|HTTP 429",
        "the hub answered too many requests, as when every rank downloads",
        _keep("download on rank 0 first, then run offline", HF_HUB_OFFLINE="1"),
    ),
    _row(
        21,
        "index_out_of_range",
        r"device-side assert|index out of bounds|index out of range in self|Target \d+ is out of bounds|"
        r"indexSelectLargeIndex",
        "a label or token id is outside the range of the layer that looks it up",
        _keep("compare the largest label or token id with num_classes or the vocabulary size"),
        _keep("run once on CPU for the exact place", device="cpu"),
    ),
    _row(
        22,
        "state_dict_mismatch",
        r"size mismatch for|Error\(s\) in loading state_dict|Missing key\(s\) in state_dict|"
        r"Unexpected key\(s\) in state_dict",
        "the checkpoint was made with another model",
        _keep("use the same model configuration, tokenizer and revision as the checkpoint"),
    ),
    _row(
        26,
        "fsdp_mixed_dtypes",
        r"(?:FSDP|flatten).*(?:uniform|same|one) dtype|Must flatten tensors with uniform dtype",
        "FSDP needs one dtype in each wrapped module",
        _keep("cast the model to one dtype before wrapping", torch_dtype="float32"),
    ),
    _row(
        23,
        "dtype_mismatch",
        r"must have the same dtype|expected scalar type \w+ but found|"
        r"expected m1 and m2 to have the same dtype|Input type .* and (?:weight|bias) type",
        "two tensors of one product have different dtypes",
        _keep("run the forward pass under autocast"),
        _ask("give the model one dtype", torch_dtype="float32"),
    ),
    _row(
        24,
        "device_mismatch",
        r"Expected all tensors to be on the same device|illegal memory access|"
        r"Input type .*cuda.*and weight type",
        "tensors lie on different devices, or a kernel read outside its memory",
        _keep("move model and batch to accelerator.device"),
        _keep("run once with blocking launches", CUDA_LAUNCH_BLOCKING="1"),
    ),
    _row(
        25,
        "unused_parameters",
        r"Expected to have finished reduction in the prior iteration|find_unused_parameters",
        "some parameters took no part in the loss, so DDP waits for their gradients",
        _keep("let DDP look for them", find_unused_parameters="true"),
        _keep("use or freeze those parameters"),
    ),
    _row(
        27,
        "wrap_class_not_found",
        r"Could not find the transformer layer class|transformer_layer_cls|layer class .*not found",
        "the layer class to wrap does not occur in the model",
        _keep("take the class name from the model itself", wrap_class="as in print(model)"),
    ),
    _row(
        28,
        "batch_arithmetic",
        r"train_batch_size is not equal to micro_batch|Check batch related parameters",
        "train_batch_size is not micro-batch x accumulation x world size",
        _ask("make the three agree", train_batch_size="micro x accumulation x world"),
    ),
    _row(
        29,
        "deepspeed_values",
        r"Please correct the following DeepSpeed config values|DeepSpeed config values that mismatch|"
        r"'auto'.*(?:DeepSpeed|ds_config)|(?:DeepSpeed|ds_config).*'?auto'?",
        'DeepSpeed\'s configuration and the arguments disagree, or an "auto" was left over',
        _ask("set each value in one place"),
    ),
    _row(
        30,
        "driver_too_old",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "the driver is older than the CUDA of this torch build",
        _keep("install a torch build for the driver's CUDA, or a newer driver"),
    ),
    _row(
        31,
        "no_kernel_image",
        r"no kernel image is available",
        "this torch build has no kernels for this GPU",
        _keep("install a torch build for this GPU's compute capability"),
    ),
    _row(
        32,
        "torch_without_cuda",
        r"Torch not compiled with CUDA enabled|Found no NVIDIA driver",
        "CUDA was asked for, and this torch build or machine has none",
        _keep("install a CUDA build of torch, or plan for CPU openly", device="cpu"),
    ),
    _row(
        33,
        "compile_toolchain",
        r"BackendCompilerFailed|torch\._inductor|Failed to find C compiler|InvalidCxxCompiler|"
        r"Cannot find a working triton|No module named 'triton'",
        "torch.compile could not compile",
        _keep("install a C compiler and Triton"),
        _keep("turn compile off", compile="false"),
    ),
    _row(
        34,
        "mps_operator_missing",
        r"not currently implemented for the MPS device|not implemented for 'MPS'",
        "an operator is missing on MPS",
        _keep("fall back to the CPU for it; slow", PYTORCH_ENABLE_MPS_FALLBACK="1"),
    ),
    _row(
        36,
        "undefined_symbol",
        r"undefined symbol",
        "an extension was built for another torch",
        _keep("install the extension's wheel for the installed torch"),
    ),
    _row(
        35,
        "api_mismatch",
        r"got an unexpected keyword argument|has no attribute|cannot import name",
        "the script uses a name that the installed version does not have",
        _keep("check_api shows the installed signature and the nearest names"),
    ),
    _row(
        38,
        "weights_only_refused",
        r"Weights only load failed|weights_only",
        "the file holds more than tensors, so it was not loaded",
        _keep("use safetensors, or a state_dict file that you trust"),
    ),
    _row(
        39,
        "gpu_hardware",
        r"uncorrectable ECC|\bXid\b|GPU has fallen off the bus",
        "the GPU or its memory is faulty",
        _keep("drain the node and run on another"),
    ),
    _row(
        40,
        "ragged_batch",
        r"Unable to create tensor|stack expects each tensor to be equal size|expected sequence of length",
        "samples of different lengths could not become one tensor",
        _keep("pad in the collator", padding="true"),
        _keep("drop or flatten ragged columns"),
    ),
    _row(
        37,
        "argument_refused",
        r"error: (?:unrecognized arguments|the following arguments are required|argument |"
        r"ambiguous option)",
        "the script refused its arguments",
        _keep("read the script's own --help; ask the user for what is missing"),
    ),
    _row(
        None,
        "checkpoint_damaged",
        r"failed finding central directory|PytorchStreamReader failed|HeaderTooLarge|"
        r"InvalidHeaderDeserialization",
        "a checkpoint file is cut off or damaged",
        _keep("resume from the checkpoint before it"),
    ),
    _row(
        None,
        "missing_module",
        r"No module named",
        "a package is missing in the training environment",
        _keep("install it into the plan's python, then make a new plan"),
    ),
    _row(
        None,
        "missing_file",
        r"\[Errno 2\] No such file|FileNotFoundError",
        "a file is missing where the job looks for it",
        _keep("declare it as data, or give its absolute path"),
    ),
    _row(None, "keyboard_interrupt", r"^KeyboardInterrupt", "the run was interrupted by SIGINT"),
    *FURTHER_FAILURES,
)


def match_failure(line: str) -> FailurePattern | None:
    """The first row that fits a line which states a failure."""
    return next((row for row in FAILURE_PATTERNS if row.pattern.search(line)), None)
