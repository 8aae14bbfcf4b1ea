# make                 the six executables in bin/ (CUDA and NCCL when nvcc is found; CUDA=0 leaves them out)
# make test            unit and bats tests            make asan           the same under ASan+UBSan
# make install PREFIX=/usr/local                      make check-layers   includes follow the layers
# make fuzz            random input to the parsers, FUZZ_SECONDS=60 each
# make bench           a table of speed and memory    make test-gpu       tests that need an NVIDIA GPU
# make bench-gpu       training on one GPU             make bench-infer-gpu   decoding and scoring on one
# make bench-multi     sharding on 1 to 8 GPUs of one host, with bars that fail
# make bench-scaling   steps on "nodes" joined by slow links, beside the plan's predictions
# make test-matrix     one curve for every combination of ranks, degree, batch, savers, overlap (half an hour)
#
# BUILD=DIR and BIN=DIR put objects and executables elsewhere; MARCH=x86-64-v3 builds for other machines.

BUILD ?= build
BIN ?= bin
PREFIX ?= /usr/local
MARCH ?= native
OPT ?= -O3
WERROR ?= -Werror
SANITIZE ?=
FUZZ_SECONDS ?= 60
NVCC ?= $(shell command -v nvcc 2>/dev/null || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
CUDA ?= $(if $(NVCC),1,0)
CUDA_ARCHS ?= 80 90
CUDA_HOME ?= $(abspath $(dir $(NVCC))..)
MPICC ?= mpicc

TOOLS := sst2-fetch gpt2-tokenize shard-pack sdp-train ckpt-merge gpt2-infer

# -fno-math-errno and -fno-trapping-math let loops vectorise; NaN and infinity keep their meaning.
CFLAGS_ALL := -std=gnu11 $(OPT) -g -march=$(MARCH) -fno-math-errno -fno-trapping-math \
	-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes $(WERROR) $(SANITIZE) \
	-Isrc -MMD -MP $(CFLAGS)
LDFLAGS_ALL := $(SANITIZE) $(LDFLAGS)

# --- libraries: one archive a folder, in the order of the layers -------------------------------------
LIBS := base format bpe cpu comm gpt2 sdp
lib_objs = $(patsubst src/%.c,$(BUILD)/%.o,$(wildcard $(1)))
OBJS_base := $(call lib_objs,src/base/*.c)
OBJS_format := $(call lib_objs,src/format/*.c)
OBJS_bpe := $(call lib_objs,src/bpe/*.c)
OBJS_cpu := $(call lib_objs,src/device/*.c src/device/cpu/*.c)
OBJS_comm := $(patsubst src/%.c,$(BUILD)/%.o,$(filter-out src/comm/nccl%,$(wildcard src/comm/*.c)))
OBJS_gpt2 := $(call lib_objs,src/gpt2/*.c)
OBJS_sdp := $(call lib_objs,src/sdp/*.c)

LIBS_base := -lxxhash -ljansson -lpthread -lm
LIBS_cpu := -ldnnl -fopenmp
MPI_CFLAGS := $(shell $(MPICC) --showme:compile 2>/dev/null)
MPI_LIBS := $(shell $(MPICC) --showme:link 2>/dev/null)

$(OBJS_cpu): CFLAGS_ALL += -fopenmp
$(OBJS_comm): CFLAGS_ALL += $(MPI_CFLAGS)

ifeq ($(CUDA),1)
# nvcc compiles kernels and their launchers (.cu); the host side of the backend is C.
OBJS_cuda := $(patsubst src/%.cu,$(BUILD)/%.cu.o,$(wildcard src/device/cuda/*.cu)) \
	$(call lib_objs,src/device/cuda/*.c)
OBJS_nccl := $(call lib_objs,src/comm/nccl*.c)
NVCC_FLAGS := -std=c++17 -O3 -lineinfo -Isrc --expt-relaxed-constexpr \
	-Xcompiler -Wall,-Wextra,$(WERROR) $(if $(WERROR),-Werror all-warnings) $(NVCCFLAGS)
NVCC_TARGETS := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
	-gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
# wgmma is only in sm_90a, whose code runs on compute capability 9.0 and on nothing later.
ifneq ($(filter 90,$(CUDA_ARCHS)),)
$(BUILD)/device/cuda/%_wgmma.cu.o: NVCC_TARGETS := -gencode arch=compute_90a,code=sm_90a -DWITH_WGMMA=1
endif
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -lcublasLt -lcudart -lstdc++
NCCL_LIBS := -lnccl
$(OBJS_cpu) $(OBJS_comm) $(OBJS_cuda) $(OBJS_nccl): CFLAGS_ALL += -DWITH_CUDA=1 -isystem $(CUDA_HOME)/include
endif

ARCHIVES := $(foreach l,$(LIBS) $(if $(filter 1,$(CUDA)),cuda nccl),$(BUILD)/lib$(l).a)
LINK_sst2-fetch := format base
LINK_gpt2-tokenize := bpe format base
LINK_shard-pack := bpe format base
LINK_sdp-train := sdp gpt2 $(if $(filter 1,$(CUDA)),nccl) comm cpu $(if $(filter 1,$(CUDA)),cuda) bpe format base
LINK_ckpt-merge := gpt2 bpe format base
LINK_gpt2-infer := gpt2 cpu $(if $(filter 1,$(CUDA)),cuda) bpe format base

SYS_sst2-fetch := -lcurl -larchive -lz $(LIBS_base)
SYS_gpt2-tokenize := $(LIBS_base)
SYS_shard-pack := -lz $(LIBS_base)
SYS_sdp-train := $(MPI_LIBS) $(NCCL_LIBS) $(CUDA_LIBS) $(LIBS_cpu) $(LIBS_base) -ldl
SYS_ckpt-merge := $(LIBS_base)
SYS_gpt2-infer := $(CUDA_LIBS) $(LIBS_cpu) -lmicrohttpd $(LIBS_base) -ldl

.PHONY: fuzz gpu-programs all clean install test unit asan check-layers bench bench-scaling test-matrix bench-tokenize bench-pack bench-memory bench-merge bench-infer bench-serve test-gpu bench-gpu bench-infer-gpu bench-multi $(TOOLS)
.SECONDARY:
all: $(addprefix $(BIN)/,$(TOOLS))
$(TOOLS): %: $(BIN)/%

define archive_rule
$(BUILD)/lib$(1).a: $$(OBJS_$(1))
	@mkdir -p $$(@D)
	@rm -f $$@
	$$(AR) rcs $$@ $$^
endef
$(foreach l,$(LIBS) cuda nccl,$(eval $(call archive_rule,$(l))))

define tool_rule
$(BIN)/$(1): $(patsubst src/%.c,$(BUILD)/%.o,$(wildcard src/$(1)/*.c)) $(foreach l,$(LINK_$(1)),$(BUILD)/lib$(l).a)
	@mkdir -p $$(@D)
	$$(CC) $$(LDFLAGS_ALL) -o $$@ $$(filter %.o,$$^) -Wl,--start-group $$(filter %.a,$$^) -Wl,--end-group $$(SYS_$(1))
endef
$(foreach t,$(TOOLS),$(eval $(call tool_rule,$(t))))

$(BUILD)/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -c -o $@ $<
$(BUILD)/%.cu.o: src/%.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) $(NVCC_TARGETS) -MD -MP -MF $(@:.o=.d) -c -o $@ $<

# --- tests: each tests/unit/test_NAME.c is one program that prints TAP --------------------------------
UNIT_TESTS := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/test_*.c))
$(BUILD)/tests/%: tests/unit/%.c $(foreach l,$(LIBS),$(BUILD)/lib$(l).a) $(if $(filter 1,$(CUDA)),$(BUILD)/libcuda.a $(BUILD)/libnccl.a)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(MPI_CFLAGS) -fopenmp -Itests/unit -o $@ $< $(LDFLAGS_ALL) \
		-Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(MPI_LIBS) $(NCCL_LIBS) $(CUDA_LIBS) $(LIBS_cpu) -larchive -lutf8proc $(LIBS_base) -ldl

# Programs of tests/gpu, which need the cuda backend.
GPU_PROGRAMS := $(patsubst tests/gpu/%.c,$(BUILD)/gpu/%,$(wildcard tests/gpu/*.c))
$(BUILD)/gpu/%: tests/gpu/%.c $(foreach l,base format gpt2 cpu cuda,$(BUILD)/lib$(l).a)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -Itests/unit -o $@ $< $(LDFLAGS_ALL) \
		-Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(CUDA_LIBS) $(LIBS_cpu) $(LIBS_base) -ldl
gpu-programs: $(GPU_PROGRAMS)

unit: $(UNIT_TESTS)
test: all unit
	tests/run-tests.sh
asan:
	$(MAKE) BUILD=$(BUILD)-asan BIN=$(BUILD)-asan/bin CUDA=0 OPT=-O1 \
		SANITIZE="-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined" all unit
check-layers:
	tests/check-layers.sh
bench: all
	tests/bench.sh
test-matrix: all
	BIN=$(abspath $(BIN)) tests/invariance.sh run full
bench-scaling: all
	tests/bench/scaling.sh
bench-tokenize: gpt2-tokenize # PYTHON=path/to/python adds tiktoken and Hugging Face tokenizers
	BIN=$(BIN) tests/bench/tokenize.sh
bench-pack: gpt2-tokenize shard-pack # MEGABYTES=400 RUNS=10 WORK=folder on the disk to measure
	BIN=$(BIN) tests/bench/pack.sh
bench-memory: gpt2-tokenize shard-pack # GIGABYTES=4 through shard-pack
	BIN=$(BIN) tests/bench/memory.sh
bench-merge: ckpt-merge # a 30B shape (SCALE=0 leaves it out), then cp beside it; tests/bench/merge.sh lists the variables
	BUILD=$(abspath $(BUILD)) BIN=$(abspath $(BIN)) tests/bench/merge.sh
bench-infer: gpt2-infer ckpt-merge # PYTHON=path/to/python adds Hugging Face
	BUILD=$(abspath $(BUILD)) BIN=$(abspath $(BIN)) tests/bench/infer.sh
bench-serve: gpt2-infer ckpt-merge # CLIENTS, REQUESTS, TOKENS, MODEL
	BUILD=$(abspath $(BUILD)) BIN=$(abspath $(BIN)) tests/bench/serve.sh
test-gpu: all unit $(if $(filter 1,$(CUDA)),gpu-programs)
	BUILD=$(BUILD) BIN=$(BIN) tests/gpu/run.sh
bench-gpu: all
	BIN=$(BIN) tests/gpu/bench_train.sh
bench-infer-gpu: gpt2-infer gpu-programs # tests/gpu/bench_infer.py lists the variables
	PATH=$(abspath $(BIN)):$$PATH BUILD=$(BUILD) $${PYTHON:-python3} tests/gpu/bench_infer.py
bench-multi: all # 1 to 8 GPUs; PYTHON with PyTorch adds FSDP2; tests/gpu/bench_multi.py lists the variables
	PATH=$(abspath $(BIN)):$$PATH python3 tests/gpu/bench_multi.py
fuzz: # every target of tests/fuzz with the sanitizers, FUZZ_SECONDS each
	tests/fuzz/run.sh $(FUZZ_SECONDS)
clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BIN)

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man5 \
		$(DESTDIR)$(PREFIX)/share/sdp-gpt2/gpt2 $(DESTDIR)$(PREFIX)/share/sdp-gpt2/models
	install -m 755 $(addprefix $(BIN)/,$(TOOLS)) $(DESTDIR)$(PREFIX)/bin
	install -m 644 share/man/man1/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 share/man/man5/*.5 $(DESTDIR)$(PREFIX)/share/man/man5
	install -m 644 share/gpt2/* $(DESTDIR)$(PREFIX)/share/sdp-gpt2/gpt2
	install -m 644 share/models/* $(DESTDIR)$(PREFIX)/share/sdp-gpt2/models

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
