"""Clients that ask the endpoint over and over: latency, throughput, and that no answer is lost or mixed up.
Every client repeats its own prompt and seed, so all its answers must be equal and carry its id."""
import http.client, json, os, sys, threading, time

port, clients, requests, tokens = (int(os.environ[k]) for k in ("PORT", "CLIENTS", "REQUESTS", "TOKENS"))
latencies, failures = [], []
lock = threading.Lock()


def ask(connection, client, number):
    record = {"id": "%d" % client, "prompt": "client %d writes" % client, "seed": client, "max_new_tokens": tokens,
              "temperature": 1.0, "ignore_eos": True, "logprobs": False}
    began = time.perf_counter()
    connection.request("POST", "/invocations", json.dumps(record), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    body = reply.read()
    taken = time.perf_counter() - began
    answer = json.loads(body)
    if reply.status != 200 or answer["id"] != "%d" % client or len(answer["ids"]) != tokens:
        raise ValueError("client %d request %d: status %d, %s" % (client, number, reply.status, body[:200]))
    return answer["ids"], taken


def run(client):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        want = None
        for number in range(requests):
            ids, taken = ask(connection, client, number)
            if want is not None and ids != want:
                raise ValueError("client %d request %d: another text than before" % (client, number))
            want = ids
            with lock:
                latencies.append(taken)
    except Exception as x:
        with lock:
            failures.append(repr(x))


threads = [threading.Thread(target=run, args=(c,)) for c in range(clients)]
began = time.perf_counter()
for t in threads:
    t.start()
for t in threads:
    t.join()
seconds = time.perf_counter() - began
latencies.sort()
if failures or len(latencies) != clients * requests:
    sys.exit("%d of %d answered; %s" % (len(latencies), clients * requests, failures[:3]))
at = lambda q: 1e3 * latencies[min(len(latencies) - 1, int(q * len(latencies)))]
print("%d clients x %d requests x %d tokens: %.0f requests/s, %.0f tokens/s, latency ms p50 %.0f p90 %.0f p99 %.0f max %.0f"
      % (clients, requests, tokens, len(latencies) / seconds, len(latencies) * tokens / seconds, at(0.5), at(0.9),
         at(0.99), 1e3 * latencies[-1]))
print("no answer lost, none mixed up")
