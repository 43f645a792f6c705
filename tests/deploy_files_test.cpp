// deploy_files_test.cpp -- proxies, Kubernetes and systemd take the files of deploy/, as far as
// they are installed, and the times in these files fit together.
#include <gtest/gtest.h>

#include <regex>

#include "program.h"
#include "proxy.h"

namespace {

using namespace braid::test;
namespace fs = std::filesystem;

const fs::path kDeploy = fs::path(BRAID_SOURCE_DIR) / "deploy";

class DeployFiles : public testing::Test {
 protected:
  DeployFiles()
      : folder_(fs::temp_directory_path() / ("braid-deploy-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~DeployFiles() override { fs::remove_all(folder_); }

  // Whether the test has what it needs.
  static bool found(const std::string& program) {
    if (have_program(program)) return true;
    std::printf("[report] skipped: no %s\n", program.c_str());
    return false;
  }
  // The output of a command that has to succeed. Its home is the test's folder.
  std::string output(const std::string& command) const {
    std::string out;
    FILE* pipe = ::popen(
        ("export PATH=$PATH:/usr/sbin HOME=" + folder_.string() + "; " + command + " 2>&1").c_str(),
        "r");
    char buffer[4096];
    while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, n);
    EXPECT_EQ(::pclose(pipe), 0) << command << "\n" << out;
    return out;
  }
  std::string written(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  // The number behind `name`.
  static double number(const std::string& text, const std::string& name) {
    std::smatch match;
    const bool found = std::regex_search(text, match, std::regex(name + "[=:]? ?([0-9.]+)"));
    EXPECT_TRUE(found) << name;
    return found ? std::stod(match[1]) : -1;
  }

  fs::path folder_;
};

TEST_F(DeployFiles, HaProxyTakesItsFile) {
  if (!found("haproxy")) GTEST_SKIP();
  output("haproxy -c -f " + (kDeploy / "proxy/haproxy.cfg").string());
}

TEST_F(DeployFiles, NginxTakesItsFile) {
  if (!found("nginx")) GTEST_SKIP();
  int pids = 0;
  const std::string config = with_lines(text_of(kDeploy / "proxy/nginx.conf"), "pid ",
                                        "pid " + (folder_ / "nginx.pid").string() + ";", &pids);
  EXPECT_EQ(pids, 1);
  output("nginx -t -q -c " + written("nginx.conf", config));
}

// It asks the replicas when it looks at the file, so they are put on this machine.
TEST_F(DeployFiles, CaddyTakesItsFile) {
  if (!found("caddy")) GTEST_SKIP();
  const std::string config = std::regex_replace(text_of(kDeploy / "proxy/Caddyfile"),
                                                std::regex("10\\.0\\.0\\."), "127.0.0.");
  EXPECT_EQ(config.find("10.0."), config.npos);
  output("caddy validate --adapter caddyfile --config " + written("Caddyfile", config));
}

TEST_F(DeployFiles, KustomizeRendersEveryFolder) {
  if (!found("kubectl")) GTEST_SKIP();
  const std::string base = output("kubectl kustomize " + (kDeploy / "kubernetes/base").string());
  EXPECT_EQ(base.find("nvidia"), base.npos);
  // The components that the GPU's folder names in a comment.
  fs::copy(kDeploy / "kubernetes", folder_ / "kubernetes", fs::copy_options::recursive);
  const fs::path overlay = folder_ / "kubernetes/gpu/kustomization.yaml";
  const std::string all =
      std::regex_replace(text_of(overlay), std::regex("# components"), "components");
  std::ofstream(overlay) << all;
  const std::string gpu = output("kubectl kustomize " + (folder_ / "kubernetes/gpu").string());
  for (const char* text :
       {"kind: Deployment", "kind: Service", "kind: PodDisruptionBudget", "kind: ScaledObject",
        "kind: PersistentVolumeClaim", "kind: InferencePool", "nvidia.com/gpu: \"1\""})
    EXPECT_NE(gpu.find(text), gpu.npos) << text;
}

TEST_F(DeployFiles, OptionsOfKubernetesExist) {
  const std::string help = run_braid({"serve", "--help-all"}).out;
  const std::string deployment = text_of(kDeploy / "kubernetes/base/deployment.yaml");
  const std::regex option("- (--[a-z-]+)");
  int count = 0;
  for (std::sregex_iterator at(deployment.begin(), deployment.end(), option), end; at != end;
       ++at, ++count)
    EXPECT_NE(help.find((*at)[1].str() + " "), help.npos) << (*at)[1];
  EXPECT_GT(count, 5);
}

// A supervisor waits longer than the two delays of the program together.
TEST_F(DeployFiles, TimesFitTogether) {
  const std::string deployment = text_of(kDeploy / "kubernetes/base/deployment.yaml");
  EXPECT_GE(number(deployment, "terminationGracePeriodSeconds"),
            number(deployment, "--drain-delay") + number(deployment, "--drain-timeout") + 10);
  const std::string unit = text_of(kDeploy / "systemd/braid.service");
  EXPECT_GE(number(unit, "TimeoutStopSec"),
            number(unit, "BRAID_DRAIN_DELAY") + number(unit, "BRAID_DRAIN_TIMEOUT") + 10);
  const std::string image = text_of(kDeploy / "Dockerfile");
  EXPECT_GE(number(image, "--stop-timeout"),
            number(image, "BRAID_DRAIN_DELAY") + number(image, "BRAID_DRAIN_TIMEOUT") + 10);
  // A proxy finds out within inter x fall.
  const std::string proxy = text_of(kDeploy / "proxy/haproxy.cfg");
  const double noticed = number(proxy, "check inter") * number(proxy, "fall");
  EXPECT_GT(number(unit, "BRAID_DRAIN_DELAY"), noticed);
  EXPECT_GT(number(image, "BRAID_DRAIN_DELAY"), noticed);
}

}  // namespace
