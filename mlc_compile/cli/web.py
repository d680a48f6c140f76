"""`mlc-compile web`: chat with an artifact in the browser."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from mlc_compile.cli.console import Output, output_options
from mlc_compile.cli.options import Artifact, open_store

PORT: Final = 8642  # always the same one: a browser keeps weights by address


@output_options
def web(
    output: Output,
    artifact: Artifact,
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0: all of this machine's.")
    ] = "127.0.0.1",
    web_llm: Annotated[
        Path | None,
        typer.Option(
            "--web-llm",
            metavar="PATH",
            help="Where the npm package @mlc-ai/web-llm is.",
            show_default="fetched with npm, once",
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
) -> None:
    """Serve the artifact in DIR, built for a WebGPU target, with a page to chat in.

    Runs until Ctrl-C; the result is the page's address.
    """
    from mlc_compile.cache import Stamps
    from mlc_compile.web.server import open_server
    from mlc_compile.web.site import open_site, read_page_manifest
    from mlc_compile.web.web_llm import find_script

    manifest = read_page_manifest(artifact)
    script = find_script(web_llm, manifest.versions.web_llm, output.cache_dir, output.story)
    if not script.genuine:
        output.story(f"{script.path} is not as npm has it for web-llm {script.version}")
    stamps = Stamps(open_store(output.cache_dir).root)
    site = open_site(artifact, manifest, script, stamps)
    with suppress(OSError):  # then the files are read again the next time
        stamps.save()
    with open_server(site, host, port) as server:
        if not server.local:
            output.story(
                "other machines can read this artifact now; their browsers give WebGPU only to "
                "pages behind HTTPS, or forwarded to their own localhost"
            )
        about = {"model": site.about.model, "quant": site.about.quant, "target": site.about.target}
        output.result({"url": server.url, **about}, server.url)
        output.story(f"{site.about.model} {site.about.quant} is there; Ctrl-C ends")
        if open_browser:
            # In a thread: a browser for terminals comes back only when it is closed.
            threading.Thread(target=_open, args=(server.url, output), daemon=True).start()
        server.serve_forever()


def _open(url: str, output: Output) -> None:
    import webbrowser

    if not webbrowser.open(url):
        output.story(f"no browser was found: open {url} yourself")
