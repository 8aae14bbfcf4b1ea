"""Clients that ask the endpoint over and over: latency, throughput, and that no answer is lost or mixed up.
usage: serve.py RECORDS ANSWERS    RECORDS: one request a client; ANSWERS: what the batch tool says to each, as JSON lines
Every client repeats its own request on one connection; each answer must be the batch tool's, id and text.
PORT, REQUESTS of each client; the exit status is 1 when an answer is lost or is another's."""
import http.client, json, os, sys, threading, time

port, requests = int(os.environ["PORT"]), int(os.environ["REQUESTS"])
records, answers = ([json.loads(line) for line in open(path)] for path in sys.argv[1:3])
clients = len(records)
assert clients == len(answers) == len({json.dumps(a["ids"]) for a in answers}), "two clients' answers are alike"
latencies, failures = [], []
lock = threading.Lock()


def ask(connection, client, number):
    began = time.perf_counter()
    connection.request("POST", "/invocations", json.dumps(records[client]), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    body = reply.read()
    taken = time.perf_counter() - began
    answer = json.loads(body) if reply.status == 200 else {}
    if any(answer.get(key) != answers[client][key] for key in ("id", "ids", "text", "finish_reason")):
        raise ValueError("client %d request %d: status %d, %s" % (client, number, reply.status, body[:200]))
    return taken


def run(client):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    for number in range(requests):
        try:
            taken = ask(connection, client, number)
            with lock:
                latencies.append(taken)
        except Exception as x:
            connection.close()
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
tokens = requests * sum(len(a["ids"]) for a in answers)
if latencies:
    at = lambda q: 1e3 * latencies[min(len(latencies) - 1, int(q * len(latencies)))]
    print("      %d clients x %d requests: %.0f requests/s, %.0f tokens/s, latency ms p50 %.0f p90 %.0f p99 %.0f max %.0f"
          % (clients, requests, len(latencies) / seconds, tokens / seconds, at(0.5), at(0.9), at(0.99), 1e3 * latencies[-1]))
for failure in failures[:3]:
    print("      " + failure)
right = not failures and len(latencies) == clients * requests
print("%s  answers as the batch tool gives them: %d of %d" % ("PASS" if right else "FAIL", len(latencies), clients * requests))
sys.exit(not right)
