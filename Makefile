# Two commands for a fresh machine: `make demo` and `make test`. Both install what is missing (tools/setup.sh), then build in
# build/ with the preset "release" of CMakePresets.json what they need: the program, or all.
.PHONY: demo test test-debug test-tsan build install uninstall setup setup-test setup-dev fuzz coverage lint format format-check docs docs-check clean help

# Two gigabytes of memory per compile job are enough; all cores otherwise.
JOBS ?= $(shell nproc)
# More for cmake, e.g. CMAKE_FLAGS=-DBRAID_CUDA_ARCHS=90a: one GPU architecture instead of all supported ones.
CMAKE_FLAGS ?=
# ON: several sources in a compiler run, which halves the work of building all. OFF: one, which is less after an edit.
UNITY ?= ON
configure = @cmake --preset release -DCMAKE_UNITY_BUILD=$(UNITY) $(CMAKE_FLAGS)
# The tests that do not start the program, which are what sanitizers and coverage are for.
UNIT_TESTS ?= base_test gguf_test text_test ops_test model_test engine_test server_test cli_test tree_test

help:
	@echo "make demo          build braid and let the built-in model show what it can do"
	@echo "make test          build and run all tests"
	@echo "make build         build only: build/braid"
	@echo "make install       build, and install below PREFIX (default /usr/local) in DESTDIR: program, library, pages"
	@echo "make test-debug    unit tests under address and undefined-behaviour sanitizers"
	@echo "make test-tsan     tests of what uses threads under ThreadSanitizer; THREAD_TESTS=\"engine_test\" for others"
	@echo "make fuzz          fuzz the parsers in the same build, FUZZ_SECONDS (default 20) per target"
	@echo "make coverage      what the unit tests reach, for each folder of src/"
	@echo "make lint          clang-tidy over what differs from main, or FILES=\"a.cpp b.cpp\""
	@echo "make format        clang-format all sources         make format-check   only look"
	@echo "make docs          tables, plots and reference pages of docs/   make docs-check     only look; also the English"

setup:
	@tools/setup.sh

setup-test:
	@tools/setup.sh --test

setup-dev:
	@tools/setup.sh --test --dev

build: setup
	$(configure) -DBRAID_TESTS=OFF >/dev/null
	@cmake --build --preset release -j $(JOBS)

# Program, library, headers, pages and service: below PREFIX alone. Packages set DESTDIR.
PREFIX ?= /usr/local
install: build
	@DESTDIR="$(DESTDIR)" cmake --install build --prefix "$(PREFIX)"

# What the last `make install` has put there.
uninstall:
	@xargs -d '\n' rm -f < build/install_manifest.txt

demo: build
	@tools/demo.sh build/braid

test: setup-test
	$(configure) -DBRAID_TESTS=ON >/dev/null
	@cmake --build --preset release -j $(JOBS)
	@tools/run_tests.sh build

# One sanitizer build serves the unit tests and the fuzz targets.
test-debug: setup-dev
	@cmake --preset debug >/dev/null
	@cmake --build --preset debug -j $(JOBS) --target $(UNIT_TESTS)
	@tools/run_tests.sh build-debug --quick $(UNIT_TESTS)

# Without the engine and the products by default, which take most of the time to compile.
THREAD_TESTS ?= threads_test
test-tsan: setup-dev
	@cmake --preset tsan >/dev/null
	@cmake --build --preset tsan -j $(JOBS) --target $(THREAD_TESTS)
	@tools/run_tests.sh build-tsan --quick $(THREAD_TESTS)

FUZZ_SECONDS ?= 20
fuzz: setup-dev
	@cmake --preset debug >/dev/null
	@cmake --build --preset debug -j $(JOBS) --target fuzzers
	@tools/fuzz.sh build-debug $(FUZZ_SECONDS)

coverage: setup-dev
	@cmake --preset coverage >/dev/null
	@cmake --build --preset coverage -j $(JOBS) --target $(UNIT_TESTS)
	@tools/coverage.sh build-coverage

FILES ?=
lint: setup-dev
	@JOBS=$(JOBS) tools/lint.sh $(FILES)

SOURCES = '*.h' '*.cpp' '*.cu' '*.cuh'
format: setup-dev
	@git ls-files -co --exclude-standard $(SOURCES) | xargs clang-format-14 -i

format-check: setup-dev
	@git ls-files -co --exclude-standard $(SOURCES) | xargs clang-format-14 --dry-run --Werror

# The reference pages are written by the program.
docs: build
	@tools/plot_benchmarks.py
	@tools/reference.py build/braid

docs-check:
	@tools/plot_benchmarks.py --check
	@tools/check_docs.py
	@tools/check_comments.py

clean:
	rm -rf build build-debug build-tsan build-coverage build-lint
