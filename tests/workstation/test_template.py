"""Templates of reports: headings and texts stay, whatever else a page may hold does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from radweave.core.errors import InputError
from radweave.workstation.mrrt_parse import read_template
from tests.workstation.stations import log_in

HEAD = """<!DOCTYPE html><html><head><title>Chest  X-ray, 2 views</title><meta charset="UTF-8">
<link rel="stylesheet" href="http://evil.example/a.css"><style>body { background: url(http://evil.example) }</style>
<script type="text/xml"><template_attributes><coded_content>RID1234</coded_content></template_attributes></script>
</head>"""
TEMPLATE = f"""{HEAD}<body onload="alert(1)">
<section id="p" class="level1" data-section-name="Procedure Information"><header class="level1">Procedure</header>
  <p><label for="t">Views</label>:
    <input type="text" id="t" value="PA and lateral" data-field-type="TEXT"></p></section>
<section data-section-name="Clinical information"><p><textarea>Cough &amp; fever.</textarea></p></section>
<section data-section-name="Findings"><header>Findings</header>
  <p><label for="l">Lungs:</label><textarea id="l">The lungs are clear.</textarea>
     <script>document.write("RAN")</script></p>
  <p><label for="h">Heart</label><select id="h"><option>Large</option><option selected>Normal</option></select></p>
  <section data-section-name="Bones"><p><input type="checkbox" checked value="No fracture."><img src="http://x/y.png">
     <input type="checkbox" value="Fracture."></p></section>
  <p><label>Tubes</label><input type="text"></p>
</section>
<section><header>Impression</header><p>No acute finding.\u202e</p></section>
<section data-section-name="Signature"><p>Dr. <a href="javascript:alert(1)">X</a></p></section>
</body></html>"""


def lines(html: str) -> list[tuple[str, str, str]]:
    result, _ = read_template({"html": html})
    return [(line["section"], line["heading"], line["text"]) for line in result["lines"]]


def test_headings_and_texts_of_a_template() -> None:
    assert lines(TEMPLATE) == [
        ("technique", "Views", "PA and lateral"), ("indication", "", "Cough & fever."),
        ("findings", "Lungs", "The lungs are clear."), ("findings", "Heart", "Normal"),
        ("findings", "Bones", "No fracture."), ("findings", "Tubes", ""), ("impression", "", "No acute finding."),
    ]  # fmt: skip
    result, _ = read_template({"html": TEMPLATE})
    assert result["title"] == "Chest X-ray, 2 views"
    assert result["left_out"] == ["Signature"]
    assert result["dropped"] == {"link": 1, "style": 1, "script": 2, "links and listeners": 2, "img": 1}


@pytest.mark.parametrize(
    "html",
    ["", "plain words", "<p>Findings</p>", "<section data-section-name='Findings'></section>",
     "<section data-section-name='x'>" * 41, "<section data-section-name='Findings'>" + "<p>a</p>" * 201],
)  # fmt: skip
def test_an_invalid_template_is_refused(html: str) -> None:
    with pytest.raises(InputError) as refused:
        read_template({"html": html})
    assert refused.value.field == "template"


@pytest.mark.parametrize(
    "html",
    [
        "<section data-section-name=Findings><p>a<script>RAN",
        "<section data-section-name=Findings><p>a<style>RAN</section>",
        "</section></p></label><section data-section-name=Findings><p>a</option></p>",
        "<section data-section-name=Findings><p>a<svg><script>RAN</script><text>RAN</text></svg></p>",
        "<section data-section-name=Findings><p>a<!-- RAN --><![CDATA[RAN]]></p>",
    ],
)
def test_broken_html_yields_its_text_only(html: str) -> None:
    assert lines(html) == [("findings", "", "a")]


def test_an_admin_loads_a_template_and_readers_read_it(client: TestClient) -> None:
    assert client.get("/api/v1/template").json() == {"template": None}
    loaded = client.put("/api/v1/template", json={"html": TEMPLATE})
    assert loaded.status_code == 200, loaded.text
    result: dict[str, Any] = loaded.json()
    assert [row["section"] for row in result["template"]["sections"]] == [
        "indication", "technique", "findings", "impression",
    ]  # fmt: skip
    refused = client.put("/api/v1/template", json={"html": "<p>x</p>"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "template")
    entries = client.get("/api/v1/log").json()["entries"]
    assert [one["action"] for one in entries if "template" in one["action"]] == ["template loaded"]
    csrf = log_in(client, "reader")
    assert client.get("/api/v1/template").json()["template"] == result["template"]
    for word in ("RAN", "evil", "script", "javascript", "onload", "<"):
        assert word not in json.dumps(result["template"])
    for method in ("PUT", "DELETE"):
        assert client.request(method, "/api/v1/template", json={"html": TEMPLATE}, headers=csrf).status_code == 403


def test_macros_are_a_reader_s_own_or_the_site_s(client: TestClient) -> None:
    assert client.get("/api/v1/macros").json() == {"own": {}, "site": {}}
    assert client.put("/api/v1/macros/site", json={"macros": {"nl": "The lungs are clear."}}).status_code == 204
    assert client.put("/api/v1/macros/own", json={"macros": {"no": "Nodule of [size] mm."}}).status_code == 204
    assert client.get("/api/v1/macros").json() == {
        "own": {"no": "Nodule of [size] mm."}, "site": {"nl": "The lungs are clear."},
    }  # fmt: skip
    for bad in ({"two words": "x"}, {"": "x"}, {"a": " "}, {"a": "x" * 2_001}, {str(n): "x" for n in range(501)}):
        assert client.put("/api/v1/macros/own", json={"macros": bad}).status_code == 422, bad
    entries = client.get("/api/v1/log").json()["entries"]
    changed = [one["details"] for one in entries if one["action"] == "macros changed"]
    assert changed == [{"of": "site", "count": 1}, {"of": "user", "count": 1}]
    csrf = log_in(client, "reader")
    assert client.get("/api/v1/macros").json() == {"own": {}, "site": {"nl": "The lungs are clear."}}
    assert client.put("/api/v1/macros/site", json={"macros": {}}, headers=csrf).status_code == 403
    assert client.put("/api/v1/macros/own", json={"macros": {}}, headers=csrf).status_code == 204
