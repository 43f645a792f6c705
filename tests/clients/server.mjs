// server.mjs -- starts the real braid program for a test file and stops it at the end.
import { spawn } from "node:child_process";

// Greedy and short: the built-in model is tiny.
export async function startServer(extra = [], context = 4096) {
  const child = spawn(process.env.BRAID, ["serve", "--port", "0", "--temp", "0", "-n", "512", "-c", String(context), ...extra], {
    stdio: ["ignore", "ignore", "pipe"],
  });
  let log = "";
  const port = await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("the server did not start:\n" + log)), 60000);
    child.stderr.on("data", (data) => {
      log += data;
      const found = log.match(/ on http:\/\/127\.0\.0\.1:(\d+)/);
      if (found) {
        clearTimeout(timer);
        resolve(Number(found[1]));
      }
    });
    child.on("exit", (code) => reject(new Error(`the server ended with ${code}:\n${log}`)));
  });
  return {
    url: `http://127.0.0.1:${port}`,
    log: () => log,
    // How the program ended: it must do so by itself.
    stop: () =>
      new Promise((resolve) => {
        child.removeAllListeners("exit");
        child.on("exit", (code) => resolve(code));
        child.kill("SIGTERM");
      }),
  };
}
