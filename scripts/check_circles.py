"""Refuses import cycles: no module may import, directly or indirectly, a module that imports it.

Imports within functions and under TYPE_CHECKING count as well: they hide a cycle but do not remove it.
"""

import sys
from collections.abc import Iterable, Mapping

import grimp


def find_circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The cycles: sets of modules that all reach each other (Tarjan), each sorted by name.

    Args:
        imports: the imported modules of every module.
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for other in sorted(imports.get(module, ())):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in path:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            start = path.index(module)
            found.append(sorted(path[start:]))
            del path[start:]

    for module in sorted(imports):
        if module not in order:
            visit(module)
    return sorted(circle for circle in found if len(circle) > 1)


def read_imports(package: str) -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports."""
    graph = grimp.build_graph(package, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def main(package: str = "psyche") -> int:
    imports = read_imports(package)
    circles = find_circles(imports)
    for circle in circles:
        print(f"{len(circle)} modules import each other:")
        for module in circle:
            within = sorted(imports[module] & set(circle))
            print(f"  {module} imports {', '.join(within)}")
    print(f"{len(imports)} modules, {len(circles)} circles of imports")
    return 1 if circles else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
