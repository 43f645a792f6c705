# Two commands for a fresh machine: `make demo` and `make test`. Both install what is missing (tools/setup.sh), then build in
# build/ with the preset "release" of CMakePresets.json what they need: the program, or all.
.PHONY: demo test build setup setup-test setup-dev fuzz format format-check clean help

# Two gigabytes of memory per compile job are enough; all cores otherwise.
JOBS ?= $(shell nproc)
# More for cmake, e.g. CMAKE_FLAGS=-DBRAID_CUDA_ARCHS=90a: one GPU architecture instead of all supported ones.
CMAKE_FLAGS ?=
# ON: several sources in a compiler run, which halves the work of building all. OFF: one, which is less after an edit.
UNITY ?= ON
configure = @cmake --preset release -DCMAKE_UNITY_BUILD=$(UNITY) $(CMAKE_FLAGS)

help:
	@echo "make demo          build braid and let the built-in model show what it can do"
	@echo "make test          build and run all tests"
	@echo "make build         build only: build/braid"
	@echo "make fuzz          sanitizer build of the parsers, FUZZ_SECONDS (default 20) per target"
	@echo "make format        clang-format all sources      make format-check   only look"

setup:
	@tools/setup.sh

setup-test:
	@tools/setup.sh --test

setup-dev:
	@tools/setup.sh --test --dev

build: setup
	$(configure) -DBRAID_TESTS=OFF >/dev/null
	@cmake --build --preset release -j $(JOBS)

demo: build
	@tools/demo.sh build/braid

test: setup-test
	$(configure) -DBRAID_TESTS=ON >/dev/null
	@cmake --build --preset release -j $(JOBS)
	@tools/run_tests.sh build

FUZZ_SECONDS ?= 20
fuzz: setup-dev
	@cmake --preset fuzz -DCMAKE_CXX_COMPILER=clang++-14 >/dev/null
	@cmake --build --preset fuzz -j $(JOBS) --target fuzzers
	@tools/fuzz.sh build-fuzz $(FUZZ_SECONDS)

format: setup-dev
	@git ls-files -co --exclude-standard '*.h' '*.cpp' | xargs clang-format-14 -i

format-check: setup-dev
	@git ls-files -co --exclude-standard '*.h' '*.cpp' | xargs clang-format-14 --dry-run --Werror

clean:
	rm -rf build build-debug build-fuzz
