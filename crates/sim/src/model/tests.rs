//! Tests of the model alone.

use super::*;

fn key(name: &str) -> Key {
    ("b".into(), name.into())
}

fn put(model: &mut Model, key: &Key, lax: bool) -> (OpId, u64) {
    let tag = model.new_tag();
    let pieces: Pieces = Arc::from([Piece { id: tag, len: 100 }]);
    (model.begin_put(key, tag, vec![pieces], Demand::None, lax), tag)
}

fn seen(states: &[(&Key, Seen)]) -> BTreeMap<Key, Seen> {
    states.iter().map(|(key, state)| ((*key).clone(), *state)).collect()
}

#[test]
fn an_acknowledged_write_must_be_read_and_survive() {
    let (mut model, k) = (Model::default(), key("k"));
    let (first, one) = put(&mut model, &k, false);
    model.acked(&first, 1, true).expect("fine");
    let (second, two) = put(&mut model, &k, false);
    let start = model.tick();
    model.saw(&k, start, one, Some(1)).expect("the second is not answered");
    model.acked(&second, 2, true).expect("fine");
    let start = model.tick();
    assert!(model.saw(&k, start, one, Some(1)).is_err(), "stale");
    model.saw(&k, start, two, Some(2)).expect("fine");
    assert!(model.saw_nothing(&k, start).is_err());
    assert!(model.restarted(&seen(&[(&k, Some((one, 1)))]), false).is_err());
    assert!(model.restarted(&seen(&[(&k, None)]), false).is_err());
    model.restarted(&seen(&[(&k, Some((two, 2)))]), false).expect("fine");
    let start = model.tick();
    assert!(model.saw(&k, start, one, None).is_err(), "resurrected");
}

#[test]
fn an_unanswered_write_may_be_there_or_not_but_once_seen_must_stay() {
    for look in [false, true] {
        let (mut model, k) = (Model::default(), key("k"));
        let (_pending, tag) = put(&mut model, &k, false);
        if look {
            let start = model.tick();
            model.saw(&k, start, tag, Some(9)).expect("fine");
        }
        assert_eq!(model.restarted(&seen(&[(&k, None)]), false).is_err(), look);
    }
}

#[test]
fn what_is_before_a_survivor_must_have_survived() {
    for (version, lost) in [(5, true), (7, false)] {
        let (mut model, a, b) = (Model::default(), key("a"), key("b"));
        let (lax, _) = put(&mut model, &a, true);
        model.acked(&lax, version, false).expect("fine");
        let (strict, tag) = put(&mut model, &b, false);
        model.acked(&strict, 6, true).expect("fine");
        let result = model.restarted(&seen(&[(&a, None), (&b, Some((tag, 6)))]), false);
        assert_eq!(result.is_err(), lost, "{result:?}");
    }
}

#[test]
fn demands_are_checked_against_the_order_of_versions() {
    let (mut model, k) = (Model::default(), key("k"));
    let (first, _) = put(&mut model, &k, false);
    model.acked(&first, 1, true).expect("fine");
    let tag = model.new_tag();
    let absent = model.begin_put(&k, tag, Vec::new(), Demand::Absent, false);
    model.check_demands().expect("nothing is known yet");
    model.acked(&absent, 2, true).expect("fine");
    assert!(model.check_demands().is_err());
}

#[test]
fn a_refusal_needs_a_reason() {
    let (mut model, k) = (Model::default(), key("k"));
    let tag = model.new_tag();
    let start = model.tick();
    let absent = model.begin_put(&k, tag, Vec::new(), Demand::Absent, false);
    assert!(model.refused(&k, start, &absent, &Demand::Absent).is_err());
    let (_pending, other) = put(&mut model, &k, false);
    model.refused(&k, start, &absent, &Demand::Absent).expect("the other may have come first");
    model.failed(&absent).expect("fine");
    assert!(model.restarted(&seen(&[(&k, None)]), false).is_err(), "the reason must survive");
    let _ = other;
}
