// commands.h -- the subcommands of the braid program.
// Each add_* registers a subcommand with its options. If chosen, it runs and sets *exit_code: 0
// success, 2 an error that the user can correct, 130 interrupted.
#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace braid::cli {

void add_run(CLI::App& app, int* exit_code);
void add_serve(CLI::App& app, int* exit_code);
void add_proxy(CLI::App& app, int* exit_code);
void add_plan(CLI::App& app, int* exit_code);
void add_placement(CLI::App& app, int* exit_code);
void add_inspect(CLI::App& app, int* exit_code);
void add_ppl(CLI::App& app, int* exit_code);
void add_kv_report(CLI::App& app, int* exit_code);
void add_quantize(CLI::App& app, int* exit_code);
void add_compress(CLI::App& app, int* exit_code);
void add_bench(CLI::App& app, int* exit_code);
// These describe all other commands, so they are added last.
void add_completion(CLI::App& app, int* exit_code);
void add_docs(CLI::App& app, int* exit_code);

// `*exit_code` must live as long as the app.
std::unique_ptr<CLI::App> make_program(int* exit_code);

}  // namespace braid::cli
