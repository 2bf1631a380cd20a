"""The files for clusters in deploy/ are what Ray and KubeRay read, and name what there is."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra replicas is not installed")
yaml = pytest.importorskip("yaml")
pytestmark = [
    pytest.mark.slow,  # importing Ray Serve takes seconds
    pytest.mark.filterwarnings("ignore"),  # those of ray's import
]

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def service() -> dict[str, Any]:
    found: dict[str, Any] = next(yaml.safe_load_all((DEPLOY / "rayservice.yaml").read_text()))
    return found


def test_the_cluster_has_ray_s_form() -> None:
    import jsonschema
    import ray

    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text()), schema)


def test_the_service_s_replicas_are_made_as_it_says() -> None:
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema(**yaml.safe_load(service()["spec"]["serveConfigV2"]))
    for index, application in enumerate(config.applications):
        module, _, name = application.import_path.partition(":")
        made = getattr(import_module(module), name)(application.args)
        deployment = made._bound_deployment
        assert application.name == f"{application.args['model']}.{index}"
        assert [item.name for item in application.deployments] == [deployment.name] == [f"replica-{index}"]
        (needs,) = [item.ray_actor_options.num_cpus for item in application.deployments]
        assert needs == deployment.ray_actor_options["num_cpus"] == deployment.init_kwargs["share"]


def test_the_service_s_fronts_ask_for_its_model() -> None:
    (front,) = [
        container
        for group in service()["spec"]["rayClusterConfig"]["workerGroupSpecs"]
        for container in group["template"]["spec"]["containers"]
        if container["name"] == "front"
    ]
    assert front["args"] == ["serve", "smollm2", "--front", "--ray-address", "auto"]
