"""The fleet file: what it may say, and that every mistake is told with its line and the remedy."""

from __future__ import annotations

import textwrap
from decimal import Decimal
from importlib import resources

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from ebbtide.core.wipes import WipePolicy
from ebbtide.errors import BadInput
from ebbtide.services.details import DriverVersion
from ebbtide.services.fleet_file import FleetFile, HostSpec, PoolSpec, parse

POOL = "pools: {p: {region: r, gpu_type: H100_SXM, blocks: {b: 1}}}\n"
REGION = "regions: {r: {}}\n"


def fleet(text: str) -> FleetFile:
    return parse(textwrap.dedent(text))


def pool(settings: str) -> PoolSpec:
    """The one pool of a file whose pool has `settings` besides its region and model."""
    found = parse(f"{REGION}pools: {{p: {{region: r, gpu_type: H100_SXM, {settings}}}}}\n")
    return found.pools[0]


def names(settings: str) -> list[str]:
    return [host.name for host in pool(settings).hosts]


def complaint(text: str | bytes) -> str:
    with pytest.raises(BadInput) as caught:
        parse(text)
    assert caught.value.code == "bad_fleet_file"
    return caught.value.message


class TestWhatItMaySay:
    def test_the_file_that_comes_with_ebbtide_is_right(self) -> None:
        text = resources.files("ebbtide").joinpath("fleets/demo.yaml").read_text()
        found = parse(text, "demo.yaml")
        assert [(p.name, len(p.hosts)) for p in found.pools] == [
            ("h100", 6),
            ("h200", 4),
            ("b200", 2),
            ("story", 4),
        ]
        assert found.pools[0].microdollars_per_gpu_hour == 2_500_000

    def test_a_small_file_gets_sensible_defaults(self) -> None:
        found = fleet("""
            regions:
              local-1:
            pools:
              h100:
                region: local-1
                gpu_type: H100_SXM
                blocks: {b1: 2}
            """)
        assert found.regions[0].driver_versions == (
            DriverVersion("local-1-570-128", "12.8", "570", "ubuntu-22.04"),
            DriverVersion("local-1-580-130", "13.0", "580", "ubuntu-22.04"),
        )
        hosts = (HostSpec("h100-b1-001", "b1"), HostSpec("h100-b1-002", "b1"))
        assert found.pools == (PoolSpec("h100", "local-1", "H100_SXM", hosts=hosts),)
        assert found.pools[0].gpus_per_host == 8
        assert found.pools[0].microdollars_per_gpu_hour is None

    def test_every_pool_key_is_read(self) -> None:
        found = pool(
            "gpus_per_host: 4, price_per_gpu_hour: 1.25, headroom_hosts: 2, turn_over_s: 7, boot_s: 9, "
            "memory_gib: 256, cpu_cores: 32, provider: exec, wipe: between_projects, hosts: [a]"
        )
        wipe = WipePolicy.BETWEEN_PROJECTS
        expected = PoolSpec(
            "p", "r", "H100_SXM", 4, 1_250_000, 2, 7, 9, 256, 32, "exec", wipe, (HostSpec("a"),)
        )
        assert found == expected

    def test_drivers_of_ones_own(self) -> None:
        found = fleet("""
            regions:
              r:
                driver_versions:
                  - {cuda_version: "12.6", nvidia_driver_version: "560", os: ubuntu-24.04}
                  - {id: mine, cuda_version: 12.80, nvidia_driver_version: 570}
            pools: {p: {region: r, gpu_type: X, hosts: []}}
            """)
        assert found.regions[0].driver_versions == (
            DriverVersion("r-560-126-ubuntu-24.04", "12.6", "560", "ubuntu-24.04"),
            DriverVersion("mine", "12.80", "570", "ubuntu-22.04"),
        )

    @pytest.mark.parametrize(
        ("written", "micros"),
        [("2.50", 2_500_000), ("0", 0), ("'1.1'", 1_100_000), ("0.000001", 1), ("10000", 10_000_000_000)],
    )
    def test_prices_are_exact(self, written: str, micros: int) -> None:
        assert pool(f"price_per_gpu_hour: {written}, hosts: [a]").microdollars_per_gpu_hour == micros

    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ("hosts: [a, b-1, no, 7]", ["a", "b-1", "no", "7"]),
            ("hosts: [{name: a, fabric_block: x}]", ["a"]),
            ("hosts: {count: 2, name: 'gpu-{n}'}", ["gpu-1", "gpu-2"]),
            ("hosts: {count: 2, first: 9, name: 'gpu-{n:02}-a'}", ["gpu-09-a", "gpu-10-a"]),
            ("hosts: [a, {count: 1, name: 'b-{n}'}], blocks: {z: 1}", ["p-z-001", "a", "b-1"]),
            ("blocks: {z: 1, y: 2}", ["p-z-001", "p-y-001", "p-y-002"]),
            ("blocks: {z: 0}", []),
            ("hosts: []", []),
        ],
    )
    def test_hosts_are_listed_counted_or_blocked(self, settings: str, expected: list[str]) -> None:
        assert names(settings) == expected

    def test_names_stay_when_a_block_grows(self) -> None:
        assert names("blocks: {z: 1200}")[:7] == names("blocks: {z: 7}")
        assert names("blocks: {z: 1200}")[-1] == "p-z-1200"

    def test_anchors_and_merges_save_typing(self) -> None:
        found = fleet("""
            regions: {r: {}, s: {}}
            pools:
              one: &usual {region: r, gpu_type: H100_SXM, boot_s: 4, blocks: {b: 1}}
              two: {<<: *usual, region: s, boot_s: 5}
            """)
        assert [(p.region, p.boot_s, p.hosts[0].name) for p in found.pools] == [
            ("r", 4, "one-b-001"),
            ("s", 5, "two-b-001"),
        ]

    def test_bytes_with_a_byte_order_mark(self) -> None:
        assert parse(b"\xef\xbb\xbf" + (REGION + POOL).encode()).pools[0].name == "p"

    def test_a_long_file_is_read(self) -> None:
        listed = "".join(f"      - host-{n}\n" for n in range(3000))
        found = parse(f"{REGION}pools:\n  p:\n    region: r\n    gpu_type: X\n    hosts:\n{listed}")
        assert len(found.pools[0].hosts) == 3000


# (what is wrong, the file, the line that must be named, words that must be said)
MISTAKES: list[tuple[str, str | bytes, int, str]] = [
    ("nothing at all", "", 1, "the file is empty; write `regions:` and `pools:`"),
    ("comments only", "# soon\n\n", 1, "the file is empty"),
    ("a list", "- regions\n", 1, "must begin with `regions:` and `pools:`, not a list"),
    ("a word", "hello", 1, "not 'hello'"),
    ("a tab", "regions:\n\tr: {}\n", 2, "indented with a tab; YAML indents with spaces"),
    ("not UTF-8", b"regions:\n  r\xff: {}\n", 2, "byte 0xff is not UTF-8; save the file as UTF-8"),
    ("a control character", "regions: {r: {}}\nx: \x00\n", 2, "U+0000 is not allowed"),
    ("open bracket", "regions: {r: {}\n", 2, "this is not YAML"),
    ("two documents", REGION + POOL + "---\n" + REGION, 3, "a second document begins here"),
    ("unknown alias", "regions: *nobody\n", 1, "undefined alias"),
    ("deep nesting", "[" * 5000, 1, "nested too deeply"),
    ("no pools", REGION, 1, "a fleet file needs `pools`; write for example"),
    ("no regions", POOL, 1, "a fleet file needs `regions`"),
    ("empty regions", "regions:\n" + POOL, 1, "needs `regions`"),
    ("regions as list", "regions: [r]\n" + POOL, 1, "must be a mapping from each region's name"),
    ("no region named", "regions: {}\n" + POOL, 1, "`regions` is empty; name at least one region"),
    ("unknown top key", REGION + POOL + "pool: 1\n", 3, "no key 'pool'; did you mean `pools`?"),
    ("unknown far key", REGION + POOL + "zzz: 1\n", 3, "it may have `pools`, `regions`"),
    ("key twice", REGION + POOL + REGION, 3, "'regions' is here twice (first on line 1)"),
    ("list as key", "? [a]\n: 1\n" + REGION + POOL, 1, "a key must be a word, not a list"),
    ("bad region name", "regions: {R_1: {}}\n" + POOL, 1, "the region name must be lower-case letters"),
    ("region is a number", "regions: {r: 5}\n" + POOL, 1, "region 'r' must be a mapping"),
    ("drivers empty", "regions: {r: {driver_versions: []}}\n" + POOL, 1, "a list of at least one entry"),
    ("driver is a word", "regions: {r: {driver_versions: [570]}}\n" + POOL, 1, "looks like {cuda_version"),
    (
        "driver without CUDA",
        "regions:\n  r:\n    driver_versions:\n      - {nvidia_driver_version: '570'}\n" + POOL,
        4,
        "a driver version needs `cuda_version`",
    ),
    (
        "driver twice",
        "regions:\n  r:\n    driver_versions:\n"
        "      - {cuda_version: '12.8', nvidia_driver_version: '570'}\n"
        "      - {cuda_version: '12.8', nvidia_driver_version: '570'}\n" + POOL,
        5,
        "the driver version id 'r-570-128' is here twice",
    ),
    ("pools as list", REGION + "pools: [p]\n", 2, "must be a mapping from each pool's name"),
    ("pool is a word", REGION + "pools: {p: big}\n", 2, "pool 'p' must be a mapping with `region`"),
    ("merge of a word", REGION + "pools: {p: {<<: x}}\n", 2, "`<<` takes a mapping, not 'x'"),
    ("merge in a circle", REGION + "pools: {p: &a {<<: *a}}\n", 2, "merges run in a circle"),
]

# (what is wrong, the pool's settings, words that must be said); the pool stands on line 2
POOL_MISTAKES: list[tuple[str, str, str]] = [
    ("no hosts", "boot_s: 1", "pool 'p' has no hosts; write for example `blocks: {b1: 4}`"),
    ("typo", "head_room_hosts: 1, hosts: []", "did you mean `headroom_hosts`?"),
    ("negative", "headroom_hosts: -1, hosts: []", "`headroom_hosts` must be a whole number from 0"),
    ("fraction", "boot_s: 1.5, hosts: []", "`boot_s` must be a whole number from 0 to 86400, not '1.5'"),
    ("a word", "gpus_per_host: eight, hosts: []", "`gpus_per_host` must be a whole number from 1 to 1024"),
    ("zero GPUs", "gpus_per_host: 0, hosts: []", "from 1 to 1024, not '0'"),
    ("hexadecimal", "memory_gib: 0x10, hosts: []", "not '0x10'"),
    ("huge", "cpu_cores: 99999999999999999999999, hosts: []", "`cpu_cores` must be a whole number"),
    ("a list as number", "boot_s: [1], hosts: []", "not a list"),
    ("negative price", "price_per_gpu_hour: -2, hosts: []", "from 0 to 10000, not '-2'"),
    (
        "price with a sign",
        "price_per_gpu_hour: $2, hosts: []",
        "dollars with at most six decimals, such as 2.50",
    ),
    ("price too fine", "price_per_gpu_hour: 0.0000001, hosts: []", "at most six decimals"),
    ("price not a number", "price_per_gpu_hour: .nan, hosts: []", "at most six decimals"),
    ("price too high", "price_per_gpu_hour: 10001, hosts: []", "from 0 to 10000"),
    (
        "wipe",
        "wipe: sometimes, hosts: []",
        "`wipe` must be one of always, between_projects, never, not 'sometimes'",
    ),
    ("provider", "provider: My Cloud, hosts: []", "`provider` must be lower-case letters"),
    ("block as list", "blocks: [b1]", "`blocks` must be a mapping from block to host count"),
    ("block name", "blocks: {B 1: 2}", "the fabric block must be lower-case letters"),
    ("block count", "blocks: {b1: many}", "the host count of block 'b1' must be a whole number"),
    ("block too big", "blocks: {b1: 200001}", "from 0 to 200000"),
    ("blocks too big", "blocks: {b1: 200000, b2: 1}", "more than 200000 hosts; split it"),
    ("hosts a number", "hosts: 5", "`hosts` must be a list of names, or {count: 4, name: gpu-{n:02}}"),
    ("host name", "hosts: [GPU_1]", "a host name must be lower-case letters, digits and dashes"),
    ("host name too long", f"hosts: [{'a' * 64}]", "at most 63"),
    ("empty host", "hosts: [a, ~]", "not nothing"),
    ("host without name", "hosts: [{fabric_block: x}]", "a host needs `name`; write for example"),
    ("host's block", "hosts: [{name: a, fabric_block: X}]", "`fabric_block` must be"),
    ("host's key", "hosts: [{name: a, blok: x}]", "a host has no key 'blok'; it may have"),
    ("a name twice", "hosts: [a, b, a]", "host 'a' is here twice (first on line 2)"),
    ("a name twice by pattern", "hosts: [a-1, {count: 2, name: 'a-{n}'}]", "host 'a-1' is here twice"),
    (
        "pattern without number",
        "hosts: {count: 2, name: gpu}",
        "`name` must be a name with `{n}` or `{n:03}`",
    ),
    ("pattern of code", "hosts: {count: 2, name: '{n.__class__}'}", "must be a name with `{n}`"),
    ("pattern makes bad names", "hosts: {count: 2, name: '-{n}'}", "the generated host name '-1' is not"),
    ("first without count", "hosts: [{name: a, first: 3}]", "`first` numbers the hosts of a `count`"),
    ("count without name", "hosts: {count: 2}", "a host needs `name`"),
]


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "line", "words"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
    )
    def test_the_line_and_the_remedy_are_told(self, text: str | bytes, line: int, words: str) -> None:
        message = complaint(text)
        assert f"fleet.yaml line {line}: " in message
        assert words in message

    @pytest.mark.parametrize(
        ("settings", "words"), [m[1:] for m in POOL_MISTAKES], ids=[m[0] for m in POOL_MISTAKES]
    )
    def test_a_pools_mistake_is_told(self, settings: str, words: str) -> None:
        message = complaint(f"{REGION}pools: {{p: {{region: r, gpu_type: X, {settings}}}}}\n")
        assert message.startswith("fleet.yaml line 2: ")
        assert words in message

    def test_a_pool_in_a_region_that_is_not_there(self) -> None:
        message = complaint(
            "regions: {r: {}, s: {}}\npools:\n  p:\n    region: t\n    gpu_type: X\n    hosts: []\n"
        )
        assert message == (
            "fleet.yaml line 4: there is no region 't' in this file (there is: r, s); add it under `regions`"
        )

    def test_two_pools_of_one_model_in_one_region(self) -> None:
        twin = "{region: r, gpu_type: X, hosts: []}"
        message = complaint(f"{REGION}pools:\n  p: {twin}\n  q: {twin}\n")
        assert message.startswith("fleet.yaml line 4: pools 'p' and 'q' both hold X in r; make them one pool")

    def test_a_host_in_two_pools(self) -> None:
        message = complaint(
            f"{REGION}pools:\n"
            "  p: {region: r, gpu_type: X, hosts: [a]}\n"
            "  q: {region: r, gpu_type: Y, hosts: [a]}\n"
        )
        assert message == "fleet.yaml line 4: host 'a' is in pool 'p' already; a host is in one pool"

    def test_all_mistakes_are_told_at_once_in_the_order_of_their_lines(self) -> None:
        message = complaint(
            textwrap.dedent("""\
                regions:
                  Bad_Name: {}
                pools:
                  p:
                    region: nowhere
                    gpus_per_host: -8
                    boots: 4
                    hosts:
                      - ok
                      - Not Ok
                """)
        )
        lines = [line.split(": ")[0] for line in message.splitlines()]
        assert lines == [f"fleet.yaml line {number}" for number in (2, 5, 5, 6, 7, 10)]

    def test_very_many_mistakes_are_cut(self) -> None:
        message = complaint(f"{REGION}pools: {{p: {{region: r, gpu_type: X, hosts: [{'A,' * 80}]}}}}\n")
        assert len(message.splitlines()) <= 51

    def test_the_files_own_name_is_used(self) -> None:
        with pytest.raises(BadInput, match=r"^prod\.yaml line 1: "):
            parse("", "prod.yaml")

    def test_a_file_beyond_the_limit_is_not_even_read(self) -> None:
        assert "4000000 is the limit" in complaint("#" * 4_000_001)

    def test_aliases_cannot_blow_up(self) -> None:
        """Ten levels of ten aliases each would be ten billion values if they were followed."""
        levels = ["a0: &a0 {x: 1}"]
        levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11)]
        assert "has no key 'a0'" in complaint("\n".join(levels) + "\n")

    def test_merges_cannot_blow_up(self) -> None:
        levels = ["a0: &a0 {x: 1}"]
        levels += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 11)]
        text = "\n".join(levels) + f"\n{REGION}pools: {{p: *a10}}\n"
        assert "merges run in a circle or too deep" in complaint(text)


words = st.sampled_from(
    [
        "regions",
        "pools",
        "r",
        "p",
        "region",
        "gpu_type",
        "hosts",
        "blocks",
        "count",
        "name",
        "first",
        "<<",
        "a-{n}",
    ]
)
scalars = words | st.integers() | st.floats() | st.booleans() | st.none() | st.text(max_size=8)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=5),
    max_leaves=25,
)


class TestAnything:
    """Whatever is in the file: it is read, or refused as BadInput. Nothing else is ever raised."""

    @given(st.text())
    @example('%YAML 9999999999999999999999.1\n---\n"\\UFFFFFFFF"')
    @example("? ? ? :")
    @example("!!binary |\n  x")
    @example("a: !<tag:yaml.org,2002:merge> b")
    def test_any_text(self, text: str) -> None:
        try_to_read(text)

    @given(st.binary())
    def test_any_bytes(self, data: bytes) -> None:
        try_to_read(data)

    @given(trees)
    def test_any_tree(self, tree: object) -> None:
        try_to_read(yaml.safe_dump(tree))

    @given(st.decimals(min_value=0, max_value=9999, places=6))
    def test_any_price_survives_exactly(self, price: Decimal) -> None:
        micros = pool(f"price_per_gpu_hour: '{price:f}', hosts: [a]").microdollars_per_gpu_hour
        assert micros == int(price * 1_000_000)


def try_to_read(data: str | bytes) -> None:
    try:
        found = parse(data)
    except BadInput as error:
        told = error.message.splitlines()
    else:
        told = []
        assert found.regions
        assert found.pools
    assert all(line.startswith(("fleet.yaml line ", "... and ")) for line in told)
