"""Pages of the rules: the catalogue, and each rule with its reason, its fix, and an example of either kind."""

from api_pages import rule_link
from field_pages import annotations, sections

from mb_config import explain
from mb_schema.rules import Rule
from mb_trainer.run.rules import RULES_BY_PACKAGE


def rule_pages() -> dict[str, str]:
    """Return the catalogue, and a page with the rules of each package."""
    pages = {
        f"reference/rules/{package}.md": package_page(package, rules)
        for package, rules in RULES_BY_PACKAGE.items()
    }
    return {**pages, "reference/rules/index.md": catalogue()}


def catalogue() -> str:
    """Return the list of all rules."""
    total = sum(len(rules) for rules in RULES_BY_PACKAGE.values())
    lines = [
        "# Catalogue of the rules",
        "",
        f"`mb check` applies these {total} rules before a run starts. An error prevents the run, a warning does not.",
        "Each rule reads the values of some fields; its page has the reason, the fix, an example that fails and one",
        "that passes. On the command line: `mb explain V242`, `mb rules --field train.global_batch_size`,",
        "`mb rules sequence_parallel`.",
        "",
        '<input class="table-filter" type="search" placeholder="Filter: id, field, word of the reason" hidden>',
        "",
        "| rule | severity | field | reason |",
        "|---|---|---|---|",
    ]
    for package, rules in RULES_BY_PACKAGE.items():
        for rule in rules:
            field = rule.fields[0].removeprefix("facts.")
            lines.append(
                f"| {rule_link(rule.id, package)} | {rule.severity} | `{field}` | {as_text(rule.why)} |"
            )
    return "\n".join([*lines, ""])


def package_page(package: str, rules: tuple[Rule, ...]) -> str:
    """Return the page with the rules of a package."""
    lines = [f"# Rules of {package}", "", f"{len(rules)} rules; [all rules](index.md).", ""]
    for rule in rules:
        lines += rule_lines(rule)
    return "\n".join(lines)


def rule_lines(rule: Rule) -> list[str]:
    """Return the lines of a rule."""
    text = explain(rule)
    fails, _, rest = text.partition("\nfails:\n")[2].partition("\nmessage: ")
    message, _, passes = rest.partition("\npasses:\n")
    return [
        f"## {rule.id} {{#{rule.id}}}",
        "",
        f"{rule.severity} · reads {', '.join(field_link(path) for path in rule.fields)}",
        "",
        f"{as_text(rule.why[:1].upper() + rule.why[1:])}. {as_text(rule.fix)}",
        "",
        "Rejected:" if rule.severity == "error" else "With a warning:",
        "",
        "```yaml",
        *unindented(fails),
        "```",
        "",
        "```text",
        message,
        "```",
        "",
        "Accepted:",
        "",
        "```yaml",
        *unindented(passes),
        "```",
        "",
    ]


def unindented(text: str) -> list[str]:
    """Return the lines of an example without their common indentation."""
    return [line.removeprefix("  ") for line in text.splitlines()]


def field_link(path: str) -> str:
    """Return the path of a field, as a link where the field has a page."""
    section, _, name = path.partition(".")
    known = any(
        name in annotations(base)
        for item in sections().get(section, [])
        for base in item.__mro__
        if base is not object
    )
    return f"[`{path}`](../fields/{section}.md#{path})" if known else f"`{path}`"


def as_text(text: str) -> str:
    """Return a text whose characters Markdown would read as markup are escaped."""
    for character in "\\`*_<>[]|":
        text = text.replace(character, f"\\{character}")
    return text
