"""`coldproof register` writes a site of accepted bundles in which every link leads to a file, and refuses a forged
bundle.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from support.browsing import a_browser, assert_it_fits_every_screen, pages_of, serious_violations
from support.bundles import copy_of, small_list
from support.nightly import with_samples

from coldproof.harness.cli.main import main
from coldproof.harness.release.bundle.verify import verify
from coldproof.harness.release.run.manifest import seal

LINK = re.compile(r'href="([^"#]+)"')


pytestmark = pytest.mark.usefixtures("small_list")


def forged(whole: Path, folder: Path) -> Path:
    """Return a bundle whose results claim more than its examples show, and which has a new seal."""
    bundle = copy_of(whole, folder)
    text = (bundle / "results.json").read_text()
    (bundle / "results.json").write_text(text.replace('"KNOWN ISSUE"', '"CONFORMS"'))
    seal(bundle)
    return bundle


def signed(whole: Path, folder: Path) -> Path:
    """Return the same bundle with a signature."""
    bundle = copy_of(whole, folder)
    (bundle / "manifest.json.sig").write_text("-----BEGIN SSH SIGNATURE-----\n")
    return bundle


@pytest.fixture(scope="module")
def site(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the register of five bundles, one of which is forged. No test changes it."""
    folder, said = tmp_path_factory.mktemp("register"), io.StringIO()
    bad, good = forged(whole, folder / "forged"), signed(whole, folder / "signed")
    words = [f"H200={whole}", f"H200={good}", f"MI355X={whole}", str(whole), f"H200={bad}"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        small_list(folder, patch)
        assert main(["register", *words, "--out", str(folder / "site")]) == 1
        reasons = verify(bad).reasons
    assert f"REFUSED: {bad}\n" in said.getvalue()
    assert all(str(reason) in said.getvalue() for reason in reasons)
    assert said.getvalue().endswith(f"4 bundles of 5 in {folder / 'site' / 'index.html'}\n")
    return folder / "site"


def test_each_engine_and_target_has_a_page_with_its_accepted_bundles(site: Path) -> None:
    """Two bundles of one target share a page, and the forged one has none."""
    pages = sorted(site.glob("*/index.html"))
    assert len(pages) == 3
    assert sum(page.read_text().count("Verified by coldproof verify: accepted.") for page in pages) == 4
    (h200,) = (page.read_text() for page in pages if "h200" in page.parent.name)
    assert h200.count("To check it again") == 4  # a heading and the name of a button, for each bundle
    assert h200.count(">manifest.json.sig</a>") == 1
    assert h200.count("Not signed: the bundle does not prove who made it") == 1
    index = (site / "index.html").read_text()
    assert "Engine versions and targets: 3" in index
    assert index.count("on H200 <a class=") == 1
    assert "2 bundles and how to verify them" in index
    assert len(list((site / "bundles").iterdir())) == 4


def test_every_link_leads_to_a_file_of_the_site_and_each_copy_is_accepted(site: Path) -> None:
    """A reader can therefore verify what the register says."""
    for page in (site / "index.html", *site.glob("*/index.html")):
        links = LINK.findall(page.read_text())
        assert links
        for link in links:
            target = (page.parent / link).resolve()
            assert target.is_relative_to(site)
            assert target.is_file(), link
    for copy in (site / "bundles").iterdir():
        assert verify(copy).accepted
    assert len(list(site.glob("*/badge.svg"))) == 3


def test_the_pages_show_the_manifest_that_a_signature_is_of(whole: Path, site: Path) -> None:
    """The pages also show every line of the verification."""
    page = next(page.read_text() for page in site.glob("*/index.html") if "mi355x" in page.parent.name)
    assert re.search(r"SHA-256 of its manifest: [0-9a-f]{64}\.", page)
    assert "examples with" in page
    assert "LORA-9" in page


@pytest.mark.parametrize("scheme", with_samples(["light", "dark"], "light"))
def test_the_register_is_readable_in_a_browser(site: Path, tmp_path: Path, scheme: str) -> None:
    """It loads nothing but its own files. Of the targets' pages, the longest one has all that the others have."""
    folder = tmp_path / "shown"
    folder.mkdir()
    longest = max(site.glob("*/index.html"), key=lambda page: page.stat().st_size)
    with a_browser() as browser, pages_of(browser, folder) as opened:
        for page in (site / "index.html", longest):
            shown = opened(page.read_text(), color_scheme=scheme)
            assert serious_violations(shown) == []
            assert_it_fits_every_screen(shown, folder / "page.png")


def test_only_a_new_folder_is_written(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A register is never partly old. A folder that is no bundle is a usage error."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    assert main(["register", str(whole), "--out", str(tmp_path / "mine")]) == 4
    assert "will not be overwritten" in capfd.readouterr().err
    assert main(["register", f"H200={tmp_path / 'nothing'}", "--out", str(tmp_path / "new")]) == 4
    assert "is not a folder" in capfd.readouterr().err
    assert not (tmp_path / "new").exists()
