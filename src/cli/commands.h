// commands.h -- the subcommands of the braid program.
//
// Each add_* registers its subcommand with its options and, when chosen, runs it and sets *exit_code:
// 0 success, 2 something the user can mend (bad input, bad option), 130 interrupted.
#pragma once

namespace CLI {
class App;
}

namespace braid::cli {

void add_run(CLI::App& app, int* exit_code);
void add_serve(CLI::App& app, int* exit_code);
void add_inspect(CLI::App& app, int* exit_code);
void add_ppl(CLI::App& app, int* exit_code);
void add_kv_report(CLI::App& app, int* exit_code);
void add_quantize(CLI::App& app, int* exit_code);
void add_bench(CLI::App& app, int* exit_code);
void add_completion(CLI::App& app, int* exit_code);  // last: it tells of all the others

}  // namespace braid::cli
