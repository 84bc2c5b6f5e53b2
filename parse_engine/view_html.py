"""Show what PARSE did to an answer, in a notebook: HTML without scripts or outside resources."""

from __future__ import annotations

from html import escape

from parse_engine.types import Generation
from parse_engine.view_rows import (
    MEANINGS,
    SIGNS,
    Kind,
    Row,
    figures,
    mark,
    rows,
    verdict_legend,
    visible,
)

# Some hosts strip styles: <del>, <ins>, <pre> and the signs then still tell the kinds apart.
TAGS: dict[Kind, str] = {"kept": "span", "rejected": "del", "rewritten": "ins", "unverified": "i"}

LIGHT = (
    "--paper:#ffffff;--ink:#1f2328;--faint:#59636e;--line:#d1d9e0;--kept:#1a7f37;"
    "--rejected:#c5303a;--rewritten:#0b5fc9;--unverified:#8250df;color-scheme:light"
)
DARK = (
    "--paper:#16191d;--ink:#e6e8eb;--faint:#9aa4af;--line:#363d45;--kept:#56d17b;"
    "--rejected:#ff8a80;--rewritten:#7ab8ff;--unverified:#c9a2ff;color-scheme:dark"
)
# The reader's system decides, unless Jupyter, VS Code or Colab says which theme it shows.
STYLE = f"""
.parse-view{{{LIGHT};background:var(--paper);color:var(--ink);border:1px solid var(--line);
border-radius:8px;padding:12px 16px;margin:8px 0;max-width:960px;
font:13px/1.5 system-ui,sans-serif}}
@media (prefers-color-scheme:dark){{.parse-view{{{DARK}}}}}
[data-jp-theme-light="true"] .parse-view,.vscode-light .parse-view,
html[theme="light"] .parse-view{{{LIGHT}}}
[data-jp-theme-light="false"] .parse-view,.vscode-dark .parse-view,
.vscode-high-contrast .parse-view,html[theme="dark"] .parse-view{{{DARK}}}
.parse-view .parse-rows{{max-height:36em;overflow:auto;margin:0 0 10px}}
.parse-view pre.parse-row{{margin:0;padding:0 6px 0 calc(2ch + 6px);text-indent:-2ch;
border:0;border-left:3px solid currentColor;background:none;white-space:pre-wrap;
overflow-wrap:anywhere;tab-size:4;font:13px/1.5 ui-monospace,Menlo,Consolas,monospace}}
.parse-view b{{font-weight:600}}
.parse-view pre b{{display:inline-block;width:1ch;text-indent:0}}
.parse-view ins,.parse-view i{{text-decoration:none;font-style:normal}}
.parse-view ins,.parse-view i{{background:none;color:inherit}}
.parse-view del{{background:none;color:inherit}}
.parse-view small,.parse-view p{{font-size:11.5px;color:var(--faint);margin:2px 0}}
.parse-view .parse-low{{color:var(--rejected);font-weight:600}}
.parse-view p span{{margin-right:1.2em}}
""" + "".join(f".parse-view .parse-{kind}{{color:var(--{kind})}}\n" for kind in TAGS)


def generation_html(generation: Generation) -> str:
    """Draw one answer as HTML: what was kept, rejected and rewritten, the verdicts, the figures.

    Parameters
    ----------
    generation : Generation
        The answer of one call.

    Returns
    -------
    str
        A ``div`` with its own style, in the light or dark colours of the page around it.
    """
    found = rows(generation)
    lines = "".join(_row(row, generation.stats.threshold) for row in found) or "<i>(no text)</i>"
    kinds = {row.kind for row in found}
    legend = "".join(
        f'<span class="parse-{kind}"><b>{SIGNS[kind]}</b> {meaning}</span> '
        for kind, meaning in MEANINGS.items()
        if kind in kinds
    )
    explained = verdict_legend(generation)
    if explained:
        legend += f"<span>{escape(explained)}</span>"
    reason = generation.stats.fallback
    fallback = (
        f"<p><b>Speculation was not used: {escape(visible(reason))}</b></p>" if reason else ""
    )
    return (
        f'<div class="parse-view"><style>{STYLE}</style><div class="parse-rows">{lines}</div>'
        f"<p>{legend}</p><p>{escape(', '.join(figures(generation)))}</p>{fallback}</div>"
    )


def _row(row: Row, threshold: float) -> str:
    tag = TAGS[row.kind]
    parts = ["<small>...</small>"] if row.continues else []
    for text, verdict in row.spans:
        words = text.lstrip()  # indentation is not struck through
        parts.append(text[: len(text) - len(words)])
        if words:
            parts.append(f"<{tag}>{escape(words)}</{tag}>")
        if verdict is not None:
            low = ' class="parse-low"' if verdict < threshold else ""
            parts.append(f" <small{low}>{mark(verdict, threshold)}</small>")
    inner = "".join(parts)
    return f'<pre class="parse-row parse-{row.kind}"><b>{SIGNS[row.kind]}</b> {inner}</pre>'
