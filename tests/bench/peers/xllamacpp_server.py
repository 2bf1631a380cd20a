"""llama.cpp's server from the package xllamacpp, which has no program of that name: it takes the flags we give one."""

import argparse
import sys
import threading

import xllamacpp as llama

TYPES = {
    "f32": llama.ggml_type.GGML_TYPE_F32,
    "bf16": llama.ggml_type.GGML_TYPE_BF16,
    "f16": llama.ggml_type.GGML_TYPE_F16,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "host", "cache-type-k", "cache-type-v", "model-draft", "cache-type-k-draft"):
        parser.add_argument(f"--{name}")
    for name in ("cache-type-v-draft", "spec-type"):
        parser.add_argument(f"--{name}")
    for name in ("port", "parallel", "ctx-size", "gpu-layers", "threads", "threads-batch", "spec-draft-n-max"):
        parser.add_argument(f"--{name}", type=int)
    flags = parser.parse_args()
    params = llama.CommonParams()
    params.model.path = flags.model
    params.hostnames = [flags.host]
    params.port = flags.port
    params.n_parallel = flags.parallel
    params.n_ctx = flags.ctx_size
    params.n_gpu_layers = flags.gpu_layers
    params.cpuparams.n_threads = flags.threads
    params.cpuparams_batch.n_threads = flags.threads_batch
    params.cache_type_k = TYPES[flags.cache_type_k]
    params.cache_type_v = TYPES[flags.cache_type_v]
    if flags.spec_type is not None:
        name = f"COMMON_SPECULATIVE_TYPE_{flags.spec_type.replace('-', '_').upper()}"
        params.speculative.types = [llama.common_speculative_type[name]]
    if flags.model_draft is not None:
        draft = params.speculative.draft
        draft.mparams.path = flags.model_draft
        draft.cache_type_k = TYPES[flags.cache_type_k_draft]
        draft.cache_type_v = TYPES[flags.cache_type_v_draft]
        draft.n_max = flags.spec_draft_n_max or draft.n_max
    server = llama.Server(params)
    sys.stderr.write(f"{server.listening_address}\n")
    threading.Event().wait()


if __name__ == "__main__":
    main()
