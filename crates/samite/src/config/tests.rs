//! Tests of layered settings.

use super::*;

fn file(text: &str) -> Result<Resolved, ConfigError> {
    Layers::default()
        .file(Path::new("config.toml"), text)?
        .resolve()
}

fn variables(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn message(result: Result<impl std::fmt::Debug, ConfigError>) -> String {
    result.expect_err("should be refused").to_string()
}

#[test]
fn a_higher_layer_wins_and_is_named_as_the_origin() {
    let resolved = Layers::default()
        .file(Path::new("user.toml"), "[fabric]\neager_max = \"1 KiB\"\ndeadline = \"1 s\"\nspin = \"1 us\"\n[launch]\ngrace = \"1 s\"\n")
        .and_then(|layers| layers.workflow(Path::new("w.toml"), "[job]\n[config.fabric]\ndeadline = \"2 s\"\nspin = \"2 us\"\n"))
        .and_then(|layers| layers.environment(variables(&[("SAMITE_FABRIC_SPIN", "3 us"), ("HOME", "/"), ("SAMITE_RANK", "0")])))
        .and_then(|layers| layers.assignment("memory.budget=1 GiB"))
        .and_then(Layers::resolve)
        .expect("all fine");
    let fabric = &resolved.config.fabric;
    assert_eq!(fabric.eager_max, Auto::Is(Bytes::new(1024)));
    assert_eq!(fabric.deadline, Span::from_secs(2));
    assert_eq!(fabric.spin.map_to_nanos(), Some(3000));
    assert_eq!(resolved.config.memory.budget, Auto::Is(Bytes::new(1 << 30)));
    assert_eq!(resolved.config.launch.grace, Span::from_secs(1));
    let text = resolved.to_toml_with_origin();
    for (key, origin) in [
        ("transport", "default"),
        ("eager_max", "user.toml:2"),
        ("deadline", "w.toml:3"),
        ("spin", "SAMITE_FABRIC_SPIN"),
        ("budget", "--config"),
        ("grace", "user.toml:6"),
    ] {
        let line = text
            .lines()
            .find(|line| line.starts_with(key))
            .unwrap_or_else(|| panic!("{key} in {text}"));
        assert!(line.ends_with(&format!("# {origin}")), "{line}");
    }
}

impl Auto<Span> {
    fn map_to_nanos(self) -> Option<u128> {
        self.set().map(|span| span.get().as_nanos())
    }
}

#[test]
fn what_is_shown_is_valid_input() {
    let resolved = Layers::default()
        .assignment("fabric.mask=[map, kernel_copy]")
        .and_then(|layers| layers.assignment("fabric.huge_pages=never"))
        .and_then(|layers| layers.assignment("fabric.spin=1500 ns"))
        .and_then(Layers::resolve)
        .expect("all fine");
    assert_eq!(
        resolved.config.fabric.mask,
        BTreeSet::from([Ability::Map, Ability::KernelCopy])
    );
    let again = file(&resolved.to_toml_with_origin()).expect("its own output");
    assert_eq!(again.config, resolved.config);
    // A folder whose name has two lines, and a stream whose name has a dot.
    let odd = Layers::default()
        .assignment("stage.a.b.folder=one\ntwo = 2")
        .and_then(Layers::resolve)
        .expect("all fine");
    let shown = odd.to_toml_with_origin();
    assert_eq!(file(&shown).expect("its own output").config, odd.config);
    assert_eq!(shown.matches("# --config").count(), 1, "{shown}");
    assert_eq!(
        Config::from_toml(&resolved.config.to_toml()).expect("its own output"),
        resolved.config
    );
    assert_eq!(
        Config::from_toml("").expect("nothing is set"),
        Config::default()
    );
}

#[test]
fn unknown_names_are_refused_with_the_nearest() {
    assert_eq!(
        message(file("[fabric]\n\neager_mx = \"8 KiB\"\n")),
        "config.toml:3: there is no setting `fabric.eager_mx`; did you mean `fabric.eager_max`?"
    );
    assert_eq!(
        message(file("[fabrik]\neager_max = \"8 KiB\"\n")),
        "config.toml:2: there is no setting `fabrik.eager_max`; did you mean `fabric.eager_max`?"
    );
    assert!(message(file("colour = \"red\"\n")).contains("samite config show"));
    assert!(
        message(file("[colours]\n")).starts_with("config.toml:1: there is no setting `colours`")
    );
    assert_eq!(
        message(Layers::default().environment(variables(&[("SAMITE_FABRIC_EAGERMAX", "1 KiB")]))),
        "environment: there is no setting `SAMITE_FABRIC_EAGERMAX`; did you mean `SAMITE_FABRIC_EAGER_MAX`?"
    );
    assert_eq!(
        message(Layers::default().assignment("fabric.deadlin=1s")),
        "--config: there is no setting `fabric.deadlin`; did you mean `fabric.deadline`?"
    );
    assert!(
        message(Layers::default().workflow(Path::new("w.toml"), "[config]\nx = 1\n"))
            .starts_with("w.toml:2")
    );
}

#[test]
fn values_that_do_not_fit_name_their_origin() {
    for (text, expected) in [
        (
            "[fabric]\neager_max = 8192\n",
            "config.toml:2: fabric.eager_max: ",
        ),
        (
            "[fabric]\neager_max = \"8192\"\n",
            "config.toml:2: fabric.eager_max: `8192` is not a size with its unit, like \"8 KiB\"",
        ),
        (
            "[fabric]\ntransport = \"pigeon\"\n",
            "config.toml:2: fabric.transport: ",
        ),
        (
            "[fabric]\nmask = [\"map\", \"mop\"]\n",
            "config.toml:2: fabric.mask",
        ),
        (
            "[fabric]\ncheck = \"yes\"\n",
            "config.toml:2: fabric.check: expected true, false, 1 or 0",
        ),
        (
            "[fabric]\nnodes = 0\n",
            "config.toml:2: fabric.nodes: there is at least 1 node",
        ),
        (
            "[fabric]\nnodes = 2\n[fabric.link]\ndelay = \"5\"\n",
            "config.toml:4: fabric.link.delay: `5` is not a time with its unit",
        ),
        (
            "[fabric]\nnodes = 2\nlink.rate = \"125 MB\"\n",
            "config.toml:3: fabric.link.rate: `125 MB` is not a rate, like",
        ),
        (
            "[fabric]\nlink = { delay = \"5us\" }\n",
            "config.toml:2: fabric.link.delay: it delays frames between units that share no",
        ),
        (
            "[fabric]\nlink.latency = \"5us\"\n",
            "config.toml:2: there is no setting `fabric.link.latency`",
        ),
        ("[fabric\n", "config.toml:1: "),
    ] {
        let message = message(file(text));
        assert!(message.starts_with(expected), "{message}");
    }
    let environment = Layers::default().environment(variables(&[("SAMITE_FABRIC_DEADLINE", "5")]));
    assert!(
        message(environment.and_then(Layers::resolve))
            .starts_with("SAMITE_FABRIC_DEADLINE: fabric.deadline: ")
    );
}

/// The settings of the link have three parts; each layer can set one of them.
#[test]
fn a_link_is_set_by_parts() {
    let text = "[fabric]\nnodes = 2\nlink.delay = \"5us\"\n";
    let layers = Layers::default().file(Path::new("config.toml"), text);
    let layers = layers.expect("settings of a file");
    let variable = [("SAMITE_FABRIC_LINK_RATE".into(), "1 Gbit/s".into())];
    let layers = layers.environment(variable).expect("a known variable");
    let layers = layers
        .assignment("fabric.link.jitter=2us")
        .expect("a known name");
    let resolved = layers.resolve().expect("settings");
    let link = resolved.config.fabric.link.link().expect("a link");
    let (delay, jitter) = (link.delay.as_micros(), link.jitter.as_micros());
    assert_eq!((delay, jitter, link.rate), (5, 2, Some(125_000_000)));
    let text = resolved.to_toml_with_origin();
    for origin in ["config.toml:3", "SAMITE_FABRIC_LINK_RATE", "--config"] {
        assert!(text.contains(origin), "{text}");
    }
    let read = Config::from_toml(&resolved.to_units()).expect("our own output");
    assert_eq!(read, resolved.config);
    let outer = Layers::default()
        .outer(&resolved.to_units())
        .and_then(Layers::resolve);
    assert_eq!(outer.expect("settings").config, resolved.config);
    assert_eq!(Config::default().fabric.link.link(), None);
}

#[test]
fn the_switch_that_people_type_has_a_short_name() {
    for (value, on) in [("1", true), ("0", false), ("true", true)] {
        let layers = Layers::default().environment([("SAMITE_CHECK".into(), value.into())]);
        let resolved = layers.and_then(Layers::resolve).expect("a known name");
        assert_eq!(resolved.config.fabric.check, on, "{value}");
    }
    let wrong = Layers::default().environment([("SAMITE_CHECK".into(), "2".into())]);
    assert!(wrong.and_then(Layers::resolve).is_err());
    // Neither name has precedence.
    let mut both = variables(&[("SAMITE_CHECK", "1"), ("SAMITE_FABRIC_CHECK", "0")]);
    for _ in 0..2 {
        let refused = message(Layers::default().environment(both.clone()));
        assert!(refused.contains("sets fabric.check as well"), "{refused}");
        both.reverse();
    }
}

#[test]
fn a_stream_whose_name_has_dots_has_settings_of_its_own() {
    let with = |lease: &str| {
        let layers = Layers::default().assignment(&format!("stage.a.b.lease={lease}"))?;
        layers.assignment("stage.a.method=file")?.resolve()
    };
    let resolved = with("7s").expect("settings");
    let streams = resolved.config.stage.configuration();
    assert_eq!(streams.stream("a.b").lease.as_secs(), 7);
    assert_eq!(streams.stream("a").method, samite_stage::Method::File);
    assert_eq!(resolved.origins_of_stream("a").count(), 1);
    let wrong = message(with("soon"));
    assert!(
        wrong.starts_with("--config: stage.a.b.lease: `soon` is not a time"),
        "{wrong}"
    );
}

#[test]
fn the_launchers_own_variables_are_no_settings() {
    let own = [
        "SAMITE_DOMAIN",
        "SAMITE_UNITS",
        "SAMITE_LAUNCHER",
        "SAMITE_CONFIG",
        "SAMITE_LOG",
        "SAMITE_PYTHON",
        "SAMITE_LAMMPS",
        "SAMITE_MOBILE_WASM",
        "SAMITE_BENCH_PEERS",
        "SAMITE_TEST_REQUIRE_ALL",
    ];
    let list: Vec<_> = own.iter().map(|name| (*name, "x")).collect();
    Layers::default()
        .environment(variables(&list))
        .expect("they are known");
}

#[test]
fn streams_have_tables_of_their_own_above_the_common_one() {
    use samite_stage::Method;
    use samite_stage::file::Durability;
    use samite_stage::protocol::{Policy, Retain, Start};
    let text = "[stage]\nmethod = \"local\"\nlimit_bytes = \"1 GiB\"\n[stage.field]\nmethod = \"server\"\nreplicas = 2\npolicy = \"every 3\"\n\n[stage.out]\nmethod = \"file\"\ndurability = \"step\"\nstart = \"step 4\"\nretain_steps = \"5 steps\"\n";
    let resolved = Layers::default()
        .file(Path::new("w.toml"), text)
        .and_then(|layers| layers.environment(variables(&[("SAMITE_STAGE_LEASE", "3 s")])))
        .and_then(|layers| layers.assignment("stage.field.limit_steps=4 steps"))
        .and_then(Layers::resolve)
        .expect("all fine");
    let all = resolved.config.stage.configuration();
    let other = all.stream("other");
    assert_eq!((other.method, other.bytes), (Method::Local, Some(1 << 30)));
    assert_eq!(other.lease.as_secs(), 3);
    let field = all.stream("field");
    assert_eq!((field.method, field.replicas), (Method::Server, 2));
    assert_eq!((field.steps, field.bytes), (Some(4), Some(1 << 30)));
    assert_eq!(field.policy, Policy::Every(3));
    assert_eq!(field.lease.as_secs(), 3);
    let out = all.stream("out");
    assert_eq!((out.method, out.start), (Method::File, Start::Step(4)));
    assert_eq!(
        (out.durability, other.durability),
        (Durability::Step, Durability::Close)
    );
    assert_eq!(out.retain, Some(Retain { steps: 5, bytes: 0 }));

    // The limit that keeps more wins: bytes do not reduce what a method keeps by itself.
    let text = "[stage]\nretain_bytes = \"1 MiB\"\n[stage.field]\nmethod = \"local\"\n";
    let kept = Layers::default()
        .file(Path::new("w.toml"), text)
        .and_then(Layers::resolve)
        .expect("all fine");
    let kept = kept.config.stage.configuration();
    let retain = |name| kept.stream(name).retain;
    let bytes = 1 << 20;
    assert_eq!(retain("field"), Some(Retain { steps: 2, bytes }));
    assert_eq!(retain("other"), Some(Retain { steps: 0, bytes }));

    let shown = resolved.to_toml_with_origin();
    let line = shown
        .lines()
        .find(|line| line.starts_with("replicas = 2"))
        .expect("it is shown");
    assert!(line.ends_with("# w.toml:6"), "{line}");
    assert_eq!(
        file(&shown).expect("its own output").config,
        resolved.config
    );
    assert_eq!(
        Config::default().stage.configuration(),
        samite_stage::Configuration::default()
    );
}

#[test]
fn nonsense_about_streams_is_refused() {
    assert_eq!(
        message(file("[stage.field]\nmethd = \"server\"\n")),
        "config.toml:2: there is no setting `stage.field.methd`; did you mean `stage.field.method`?"
    );
    for (text, begin) in [
        (
            "[stage]\npolicy = \"ever\"\n",
            "config.toml:2: stage.policy: `ever` is not one of",
        ),
        (
            "[stage]\nlimit_steps = 4\n",
            "config.toml:2: stage.limit_steps: ",
        ),
        (
            "[stage.field]\n\nlease = \"5\"\n",
            "config.toml:3: stage.field.lease: ",
        ),
        (
            "[stage.field]\nmethod = \"pigeon\"\n",
            "config.toml:2: stage.field.method: ",
        ),
        (
            "[stage]\npolicy = \"every 0\"\n",
            "config.toml:2: stage.policy: ",
        ),
        (
            "[stage]\nfield = 1\n",
            "config.toml:2: there is no setting `stage.field`",
        ),
    ] {
        let message = message(file(text));
        assert!(message.starts_with(begin), "{message}");
    }
    assert!(
        Layers::default()
            .assignment("stage.field.colour=red")
            .is_err()
    );
}

#[test]
fn a_text_that_looks_like_something_else_is_a_text() {
    for folder in ["2024", "true", "[a, b]", "1.50", "plain"] {
        let resolved = Layers::default()
            .assignment(&format!("stage.folder={folder}"))
            .and_then(|layers| layers.assignment(&format!("stage.field.folder={folder}")))
            .and_then(Layers::resolve)
            .unwrap_or_else(|error| panic!("{folder}: {error}"));
        let streams = resolved.config.stage.configuration();
        assert_eq!(streams.all.folder, std::path::Path::new(folder));
        assert_eq!(streams.stream("field").folder, std::path::Path::new(folder));
    }
    let environment = variables(&[
        ("SAMITE_STAGE_FOLDER", "2024"),
        ("SAMITE_STAGE_REPLICAS", "2"),
    ]);
    let resolved = Layers::default().environment(environment);
    let resolved = resolved.and_then(Layers::resolve).expect("settings");
    let all = resolved.config.stage.configuration().all;
    assert_eq!((all.folder, all.replicas), ("2024".into(), 2));
}

#[test]
fn what_was_said_to_an_outer_launcher_counts() {
    // Some of these are the defaults.
    let outer = [
        "stage.method=stream",
        "fabric.deadline=9s",
        "stage.field.lease=1s",
    ];
    let outer = outer
        .iter()
        .try_fold(Layers::default(), |layers, one| layers.assignment(one));
    let outer = outer.and_then(Layers::resolve).expect("settings");
    let inner =
        "[config.stage]\nmethod = \"file\"\nreplicas = 2\n[config.fabric]\ndeadline = \"7s\"\n";
    let path = std::path::Path::new("flow.toml");
    // Through two launchers.
    let middle = Layers::default().outer(&outer.to_units());
    let middle = middle.and_then(Layers::resolve).expect("settings");
    for text in [outer.to_units(), middle.to_units()] {
        assert_eq!(Config::from_toml(&text).expect("settings"), outer.config);
        let resolved = Layers::default()
            .workflow(path, inner)
            .and_then(|layers| layers.outer(&text))
            .and_then(Layers::resolve)
            .expect("settings");
        let all = resolved.config.stage.configuration().all;
        assert_eq!(
            (all.method, all.replicas),
            (samite_stage::Method::Stream, 2)
        );
        assert_eq!(
            resolved.config.fabric.deadline,
            outer.config.fabric.deadline
        );
        assert!(resolved.is_of_this_run("stage.method"));
        assert!(resolved.is_of_this_run("stage.field.lease"));
        assert!(!resolved.is_of_this_run("stage.replicas"));
        assert!(!resolved.is_of_this_run("fabric.spin"));
    }
}

/// A file name may look like a variable.
#[test]
fn what_a_file_says_is_not_of_this_run() {
    let text = "[config.fabric]\ndeadline = \"7s\"\n";
    let layers = Layers::default().workflow(std::path::Path::new("SAMITE_lab.toml"), text);
    let resolved = layers.and_then(|layers| layers.assignment("fabric.eager_max=8 KiB"));
    let resolved = resolved.and_then(Layers::resolve).expect("settings");
    assert!(!resolved.is_of_this_run("fabric.deadline"));
    assert!(resolved.is_of_this_run("fabric.eager_max"));
}

#[test]
fn the_file_of_the_user_counts_less_than_an_inner_workflow() {
    let path = std::path::Path::new("config.toml");
    let text = "[stage]\nmethod = \"stream\"\nreplicas = 2\n[stage.field]\nlease = \"1s\"\npolicy = \"latest\"\n";
    let users = |layers: Layers| layers.file_of_user(path, text);
    let outer = users(Layers::default());
    let outer = outer.and_then(|layers| layers.assignment("stage.field.lease=2s"));
    let outer = outer.and_then(Layers::resolve).expect("settings");
    let workflow = "[config.stage]\nmethod = \"file\"\n[config.stage.field]\nlease = \"9s\"\npolicy = \"block\"\n";
    // The launcher in between also reads the user's file.
    let middle = users(Layers::default()).and_then(|layers| layers.outer(&outer.to_units()));
    let middle = middle.and_then(Layers::resolve).expect("settings");
    for text in [outer.to_units(), middle.to_units()] {
        assert_eq!(Config::from_toml(&text).expect("settings"), outer.config);
        let resolved = users(Layers::default())
            .and_then(|layers| layers.workflow(path, workflow))
            .and_then(|layers| layers.outer(&text))
            .and_then(Layers::resolve)
            .expect("settings");
        let streams = resolved.config.stage.configuration();
        assert_eq!(streams.all.method, samite_stage::Method::File);
        assert_eq!(streams.all.replicas, 2);
        for (setting, is_said) in [
            ("method", false),
            ("field.policy", false),
            ("field.lease", true),
        ] {
            assert_eq!(
                resolved.is_of_this_run(&format!("stage.{setting}")),
                is_said,
                "{setting}"
            );
        }
    }
}

#[test]
fn outer_settings_are_a_layer_of_what_is_not_the_default() {
    let outer = file("[fabric]\ndeadline = \"9s\"\n[stage.field]\nmethod = \"local\"\n");
    let outer = outer.expect("settings").config.to_toml();
    let inner = "[config.fabric]\ndeadline = \"7s\"\neager_max = \"8 KiB\"\n";
    let resolved = Layers::default()
        .workflow(std::path::Path::new("flow.toml"), inner)
        .and_then(|layers| layers.outer(&outer))
        .and_then(Layers::resolve)
        .expect("settings");
    let fabric = &resolved.config.fabric;
    assert_eq!(fabric.deadline.get(), std::time::Duration::from_secs(9));
    assert_eq!(fabric.eager_max.set().map(|bytes| bytes.get()), Some(8192));
    assert!(resolved.is_of_this_run("fabric.deadline"));
    assert!(resolved.is_of_this_run("stage.field.method"));
    assert!(!resolved.is_of_this_run("fabric.eager_max"));
}

#[test]
fn what_is_recorded_of_chunks_is_chosen_by_name() {
    use samite_dsm::log::Level;
    let with = |value: &str| {
        let layers = Layers::default().assignment(&format!("dsm.log={value}"))?;
        layers.resolve()
    };
    for (word, level) in [
        ("off", Level::Off),
        ("counters", Level::Counters),
        ("full", Level::Full),
    ] {
        let config = with(word).expect("it is a level").config;
        let settings = Config::from_toml(&config.to_toml()).map(|read| read.dsm.log_settings());
        let settings = settings.expect("it is what was written");
        assert_eq!(settings.level, level);
        let folder = settings.folder_of("a/b");
        assert_eq!(folder, Path::new("samite-log/a_b"));
    }
    let error = with("fulll").expect_err("it is none").to_string();
    assert!(error.contains("did you mean `full`?"), "{error}");
}
