// Tests deploy/: it uses existing metrics only, and gives the server enough time to end.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "server/metrics.h"

namespace braid::server {
namespace {

std::string file(const std::string& name) {
  std::ifstream in(std::string(BRAID_SOURCE_DIR) + "/deploy/" + name, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::map<std::string, std::string> offered() {
  Metrics metrics;
  const std::string text = metrics.render({}, "model", "1", {});
  std::map<std::string, std::string> out;
  const std::regex line(R"(# TYPE (\S+) (\S+))");
  for (std::sregex_iterator at(text.begin(), text.end(), line), end; at != end; ++at)
    out[(*at)[1]] = (*at)[2];
  return out;
}

std::set<std::string> series() {
  std::set<std::string> out;
  for (const auto& [name, type] : offered()) {
    if (type != "histogram") out.insert(name);
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      if (type == "histogram") out.insert(name + suffix);
    }
  }
  return out;
}

void expect_known(const std::string& text, const std::string& where, int least) {
  const std::set<std::string> known = series();
  const std::regex name(R"(\bbraid_[a-z0-9_]+)");
  int count = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at, ++count) {
    EXPECT_TRUE(known.count(at->str()))
        << where << " asks for " << at->str() << ", which /metrics does not have";
  }
  EXPECT_GE(count, least) << where;
}

TEST(Deploy, DashboardAsksForMetricsThatExist) {
  const auto dashboard = nlohmann::json::parse(file("grafana/braid.json"));
  std::set<int> ids;
  std::string queries;
  for (const auto& panel : dashboard.at("panels")) {
    EXPECT_TRUE(ids.insert(panel.at("id").get<int>()).second) << "two panels with one id";
    for (const auto& target : panel.at("targets"))
      queries += target.at("expr").get<std::string>() + "\n";
  }
  for (const auto& variable : dashboard.at("templating").at("list"))
    queries += variable.at("query").dump() + "\n";
  expect_known(queries, "the dashboard", 30);
  // Only counters are used with rate().
  const auto types = offered();
  const std::regex rated(R"(rate\((braid_[a-z0-9_]+))");
  for (std::sregex_iterator at(queries.begin(), queries.end(), rated), end; at != end; ++at) {
    const auto found = types.find((*at)[1].str());
    if (found != types.end()) {
      EXPECT_EQ(found->second, "counter") << found->first;
    }
  }
}

TEST(Deploy, AlertsAskForMetricsThatExist) {
  expect_known(file("prometheus/alerts.yml"), "alerts.yml", 7);
}

int number_behind(const std::string& text, const std::string& name) {
  std::smatch found;
  return std::regex_search(text, found, std::regex(name + "([0-9]+)")) ? std::stoi(found[1]) : -1;
}

TEST(Deploy, TheServerHasTheTimeToEndThatItTakes) {
  constexpr int kSpareS = 10;  // for the last events and freeing the model
  const std::string unit = file("systemd/braid.service"), image = file("Dockerfile");
  for (const std::string& text : {unit, image, file("systemd/braid.env")}) {
    EXPECT_EQ(number_behind(text, "BRAID_DRAIN_DELAY="), 5) << "a balancer looks every 2 s, twice";
    EXPECT_EQ(number_behind(text, "BRAID_DRAIN_TIMEOUT="), 30);
  }
  const int takes =
      number_behind(unit, "BRAID_DRAIN_DELAY=") + number_behind(unit, "BRAID_DRAIN_TIMEOUT=");
  EXPECT_GE(number_behind(unit, "TimeoutStopSec="), takes + kSpareS);
  for (const char* name : {"--stop-timeout ", "stop_grace_period: "})
    EXPECT_GE(number_behind(image, name), takes + kSpareS) << name;
}

// With keys, model names and usage need a key unless the operator opens them.
TEST(Deploy, NothingIsOpenedByDefault) {
  for (const char* name : {"systemd/braid.service", "systemd/braid.env", "Dockerfile"}) {
    std::istringstream lines(file(name));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("#")) continue;
      EXPECT_EQ(line.find("public"), std::string::npos) << name << ": " << line;
      EXPECT_EQ(line.find("ALLOWED_HOST"), std::string::npos) << name << ": " << line;
    }
  }
}

}  // namespace
}  // namespace braid::server
