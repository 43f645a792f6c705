// program.h -- runs the real braid program and collects its output.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

namespace braid::test {

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Runs BRAID_PROGRAM with `arguments` and `input` on stdin; kills it after two minutes.
inline Outcome run_braid(const std::vector<std::string>& arguments, const std::string& input = "") {
  int in_pipe[2], out_pipe[2], err_pipe[2];
  if (::pipe(in_pipe) != 0 || ::pipe(out_pipe) != 0 || ::pipe(err_pipe) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(in_pipe[0], 0);
    ::dup2(out_pipe[1], 1);
    ::dup2(err_pipe[1], 2);
    for (int fd : {in_pipe[0], in_pipe[1], out_pipe[0], out_pipe[1], err_pipe[0], err_pipe[1]})
      ::close(fd);
    std::vector<char*> argv{const_cast<char*>(BRAID_PROGRAM)};
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(BRAID_PROGRAM, argv.data());
    ::_exit(127);
  }
  ::close(in_pipe[0]);
  ::close(out_pipe[1]);
  ::close(err_pipe[1]);
  ::signal(SIGPIPE, SIG_IGN);
  if (::write(in_pipe[1], input.data(), input.size()) <
      0) { /* the program may have ended already */
  }
  ::close(in_pipe[1]);

  Outcome outcome;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  pollfd watched[2] = {{out_pipe[0], POLLIN, 0}, {err_pipe[0], POLLIN, 0}};
  int open = 2;
  while (open > 0 && std::chrono::steady_clock::now() < deadline) {
    if (::poll(watched, 2, 1000) <= 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (watched[i].fd < 0 || watched[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = ::read(watched[i].fd, buffer, sizeof buffer);
      if (count > 0) {
        (i == 0 ? outcome.out : outcome.err).append(buffer, static_cast<size_t>(count));
      } else {
        watched[i].fd = -1;
        --open;
      }
    }
  }
  if (open > 0) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(out_pipe[0]);
  ::close(err_pipe[0]);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

}  // namespace braid::test
