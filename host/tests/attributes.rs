//! The attribute table of the QP state machine against its own transcription from the reference text.

use host::qp::attributes::transition;
use host::{AttrMask, QpState, Transport};

/// From, to, required and optional attributes; RC, UC, UD. In the reference's abbreviations.
const TABLE: &str = "
    RESET INIT | R PKI PORT ACC                        | R PKI PORT ACC               | R PKI PORT QKEY
    INIT INIT  | O PKI PORT ACC                        | O PKI PORT ACC               | O PKI PORT QKEY
    INIT RTR   | R AV PMTU DQPN RQ_PSN MDRA RNRT O ALT ACC PKI | R AV PMTU DQPN RQ_PSN O ALT ACC PKI | O PKI QKEY
    RTR RTS    | R TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MQRA O CUR ALT ACC RNRT MIG | R SQ_PSN O CUR ALT ACC MIG | R SQ_PSN O CUR QKEY
    RTS RTS    | O CUR ACC ALT MIG RNRT                | O CUR ACC ALT MIG            | O CUR QKEY
    RTS SQD    | O SQDN                                | O SQDN                       | O SQDN
    SQD RTS    | O CUR ALT ACC RNRT MIG                | O CUR ALT ACC MIG            | O CUR QKEY
    SQD SQD    | O PORT AV TIMEOUT RETRY_CNT RNR_RETRY MQRA MDRA ALT ACC PKI RNRT MIG | O AV ALT ACC PKI MIG | O PKI QKEY
    SQE RTS    | -                                     | O CUR ACC                    | O CUR QKEY
";

fn state(name: &str) -> QpState {
    QpState::ALL.iter().copied().find(|state| state.name().eq_ignore_ascii_case(name)).expect("a state")
}

fn attribute(name: &str) -> AttrMask {
    match name {
        "PKI" => AttrMask::PKEY_INDEX,
        "PORT" => AttrMask::PORT,
        "ACC" => AttrMask::ACCESS_FLAGS,
        "QKEY" => AttrMask::QKEY,
        "AV" => AttrMask::AV,
        "PMTU" => AttrMask::PATH_MTU,
        "DQPN" => AttrMask::DEST_QPN,
        "RQ_PSN" => AttrMask::RQ_PSN,
        "MDRA" => AttrMask::MAX_DEST_RD_ATOMIC,
        "MQRA" => AttrMask::MAX_QP_RD_ATOMIC,
        "RNRT" => AttrMask::MIN_RNR_TIMER,
        "ALT" => AttrMask::ALT_PATH,
        "CUR" => AttrMask::CUR_STATE,
        "MIG" => AttrMask::PATH_MIG_STATE,
        "SQDN" => AttrMask::EN_SQD_ASYNC_NOTIFY,
        "TIMEOUT" => AttrMask::TIMEOUT,
        "RETRY_CNT" => AttrMask::RETRY_CNT,
        "RNR_RETRY" => AttrMask::RNR_RETRY,
        "SQ_PSN" => AttrMask::SQ_PSN,
        _ => panic!("{name}"),
    }
}

fn masks(cell: &str) -> Option<(AttrMask, AttrMask)> {
    let (mut required, mut optional, mut to_optional) = (AttrMask::empty(), AttrMask::empty(), false);
    for word in cell.split_whitespace() {
        match word {
            "-" => return None,
            "R" => to_optional = false,
            "O" => to_optional = true,
            word if to_optional => optional |= attribute(word),
            word => required |= attribute(word),
        }
    }
    Some((required, optional))
}

#[test]
fn every_pair_of_states_takes_exactly_the_references_attributes() {
    let rows: Vec<(QpState, QpState, Vec<&str>)> = TABLE
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let mut cells = line.split('|');
            let mut states = cells.next().unwrap_or_default().split_whitespace().map(state);
            (states.next().unwrap(), states.next().unwrap(), cells.collect())
        })
        .collect();
    assert_eq!(rows.len(), 9);
    for (column, transport) in [Transport::Rc, Transport::Uc, Transport::Ud].into_iter().enumerate() {
        for from in QpState::ALL.iter().copied() {
            for to in QpState::ALL.iter().copied() {
                let none = Some((AttrMask::empty(), AttrMask::empty()));
                let expected = match (from, to) {
                    (_, QpState::Reset) => none,
                    (QpState::Reset, QpState::Err) => None,
                    (_, QpState::Err) => none,
                    _ => rows
                        .iter()
                        .find(|row| (row.0, row.1) == (from, to))
                        .and_then(|row| masks(row.2[column])),
                };
                assert_eq!(transition(transport, from, to), expected, "{transport:?} {from:?} to {to:?}");
            }
        }
    }
}
