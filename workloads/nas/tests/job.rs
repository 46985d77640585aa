//! The two programs on one, two, three and four units, however bytes travel: the published results.

use samite::Mask;
use samite_nas::Class;
use samite_nas::job::{cg, is};
use samite_testkit::{Failed, Outcome, check, units};

fn run_is(name: &str, count: u32, mask: Mask, class: Class) {
    units(count).mask(mask).run(name, |fabric, _| {
        let mut out = Vec::new();
        is::run(fabric, &is::Args { class }, &mut out).map_err(Failed::new)?;
        let speaks = fabric.identity().unit == 0;
        verified(&out, speaks, "51 of 51 checks")
    });
}

fn run_cg(name: &str, count: u32, mask: Mask, class: Class) {
    units(count).mask(mask).run(name, |fabric, _| {
        let mut out = Vec::new();
        cg::run(fabric, &cg::Args { class }, &mut out).map_err(Failed::new)?;
        let speaks = fabric.identity().unit == 0;
        verified(&out, speaks, "zeta is ")
    });
}

/// One unit says that the result is right, the others are silent.
fn verified(out: &[u8], speaks: bool, detail: &str) -> Outcome {
    let text = String::from_utf8_lossy(out);
    let expected = format!("SUCCESSFUL: {detail}");
    check!(text.contains(&expected) == speaks, "{expected}? {text}");
    check!(text.is_empty() != speaks, "{text}");
    Ok(())
}

#[test]
fn is_s_on_one_unit() {
    run_is("is_s_on_one_unit", 1, Mask::default(), Class::S);
}

#[test]
fn is_s_on_two_units() {
    run_is("is_s_on_two_units", 2, Mask::default(), Class::S);
}

#[test]
fn is_s_on_three_units() {
    run_is("is_s_on_three_units", 3, Mask::default(), Class::S);
}

#[test]
fn is_w_on_four_units() {
    run_is("is_w_on_four_units", 4, Mask::default(), Class::W);
}

#[test]
fn is_s_on_three_units_by_messages() {
    let name = "is_s_on_three_units_by_messages";
    run_is(name, 3, Mask::MESSAGES_ONLY, Class::S);
}

#[test]
fn is_w_on_two_units_by_messages() {
    let name = "is_w_on_two_units_by_messages";
    run_is(name, 2, Mask::MESSAGES_ONLY, Class::W);
}

#[test]
fn cg_s_on_one_unit() {
    run_cg("cg_s_on_one_unit", 1, Mask::default(), Class::S);
}

#[test]
fn cg_w_on_two_units() {
    run_cg("cg_w_on_two_units", 2, Mask::default(), Class::W);
}

#[test]
fn cg_s_on_three_units() {
    run_cg("cg_s_on_three_units", 3, Mask::default(), Class::S);
}

#[test]
fn cg_s_on_four_units() {
    run_cg("cg_s_on_four_units", 4, Mask::default(), Class::S);
}

#[test]
fn cg_s_on_three_units_by_messages() {
    let name = "cg_s_on_three_units_by_messages";
    run_cg(name, 3, Mask::MESSAGES_ONLY, Class::S);
}
