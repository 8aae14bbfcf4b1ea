"""Drives headless Chromium over its debugging pipe: types a prompt into the page of gpt2-infer --serve, sends it, and
reads what the page says when it is done and of a refused request; then watches a long text grow and stops it.
usage: page.py BROWSER URL"""
import json, os, signal, subprocess, sys, tempfile, time


class Browser:
    def __init__(self, program, profile):
        to_browser, self.out = os.pipe()
        self.inp, from_browser = os.pipe()

        def descriptors():  # the browser reads 3 and writes 4
            keep = os.dup(to_browser), os.dup(from_browser)
            os.dup2(keep[0], 3), os.dup2(keep[1], 4)
            os.setsid()

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--remote-debugging-pipe", "--user-data-dir=" + profile, "about:blank"],
            close_fds=False, preexec_fn=descriptors, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser), os.close(from_browser)
        self.number, self.rest, self.session = 0, b"", None

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                data = os.read(self.inp, 65536)
                assert data, "the browser went away"
                self.rest += data
            line, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(line)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        failed = self.call("Page.navigate", url=url).get("errorText")
        assert not failed, failed

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, "never true: %s; the page says: %s" % (
                expression, self.value("document.body.innerText"))
            time.sleep(0.01)

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def send(browser, prompt, tokens):
    browser.value("$('prompt').value = %s; $('n').value = %d; $('go').click()" % (json.dumps(prompt), tokens))


def check(browser, url):
    browser.open(url)
    browser.until("document.readyState == 'complete' && !!document.getElementById('go')")
    assert browser.value("document.title") == "GPT-2"

    prompt = "A <b>prompt</b> & \u00e9"
    send(browser, prompt, 60)
    browser.until("/^\\d+ pieces in [\\d.]+ s$/.test($('note').textContent)")
    assert browser.value("$('out').textContent").startswith(prompt)
    assert len(browser.value("$('out').querySelector('b').textContent")) > 0

    send(browser, prompt, 100000)  # more than the endpoint grants: it says so
    browser.until("$('note').textContent.includes('at most 4096')")
    # stopped at the fourth length seen: it is only if the text grows as it is made; long enough for a busy machine
    browser.value("window.lengths = new Set(); new MutationObserver(() => {"
                  " lengths.add($('out').querySelector('b')?.textContent.length); lengths.size > 3 && $('stop').click() })"
                  ".observe($('out'), {childList: true, subtree: true})")
    send(browser, prompt, 4096)
    browser.until("$('note').textContent == 'stopped'")


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    chromium = Browser(sys.argv[1], folder)
    try:
        check(chromium, sys.argv[2])
    finally:
        chromium.close()
