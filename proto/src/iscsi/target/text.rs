//! Text in the full-feature phase: SendTargets, and the little that can still be declared
//! (RFC 7143, 11.10, 11.11 and Appendix C).

use bytes::Bytes;

use super::session::Session;
use super::{Event, Selection, TargetRecord};
use crate::iscsi::header::{NO_TAG, RejectReason, TextRequest, TextResponse};
use crate::iscsi::negotiation;
use crate::iscsi::pdu::Pdu;
use crate::iscsi::text::{self, Assembly};

/// An exchange under way.
#[derive(Debug)]
pub(super) struct Exchange {
    itt: u32,
    /// What the next request is to carry, where one is awaited.
    ttt: u32,
    request: Assembly,
    /// The answer, and how much of it has been sent.
    answer: Bytes,
    /// All of the request has come.
    answering: bool,
}

impl Session {
    pub(super) fn on_text(&mut self, cid: u16, request: &TextRequest, pdu: &Pdu) {
        let text_max = self.setup.text_max;
        let Some(connection) = self.connection(cid) else { return };
        if request.ttt == NO_TAG {
            // A new exchange resets one left unfinished (RFC 7143, 11.10.4).
            connection.text = Some(Exchange {
                itt: request.itt,
                ttt: NO_TAG,
                request: Assembly::of_at_most(text_max),
                answer: Bytes::new(),
                answering: false,
            });
        }
        let exchange = connection.text.as_mut().filter(|exchange| exchange.ttt == request.ttt);
        let Some(exchange) = exchange else {
            return self.reject(cid, pdu, RejectReason::PROTOCOL_ERROR);
        };
        exchange.itt = request.itt;
        if exchange.answering {
            return self.send_text(cid);
        }
        match exchange.request.add(&pdu.data, request.continues) {
            Err(_) => self.refuse_text(cid, pdu),
            // RFC 7143, 11.11: an empty response that asks for the rest.
            Ok(None) => self.send_text_segment(cid, Bytes::new(), true, false),
            Ok(Some(whole)) => self.answer_text(cid, &whole, pdu),
        }
    }

    fn refuse_text(&mut self, cid: u16, pdu: &Pdu) {
        if let Some(connection) = self.connection(cid) {
            connection.text = None;
        }
        self.reject(cid, pdu, RejectReason::PROTOCOL_ERROR);
    }

    fn answer_text(&mut self, cid: u16, request: &[u8], pdu: &Pdu) {
        let Ok(pairs) = text::parse(request) else { return self.refuse_text(cid, pdu) };
        let mut answer = Vec::new();
        let mut asked = None;
        for pair in pairs {
            if pair.key == "SendTargets" {
                match self.selection(pair.value) {
                    Some(chosen) => asked = Some(chosen),
                    None => text::push(&mut answer, pair.key, negotiation::REJECT),
                }
                continue;
            }
            let Some(connection) = self.connection(cid) else { return };
            match negotiation::full_feature(&mut connection.segment_max, pair) {
                Ok(Some(value)) => text::push(&mut answer, pair.key, value),
                Ok(None) => {}
                Err(_) => return self.refuse_text(cid, pdu),
            }
        }
        if let Some(exchange) = self.exchange(cid) {
            exchange.answering = true;
            exchange.answer = answer.into();
        }
        match asked {
            Some(selection) => self.events.push_back(Event::SendTargets { cid, selection }),
            None => self.send_text(cid),
        }
    }

    /// RFC 7143, Appendix C: all targets only in a discovery session, the current one only in a normal
    /// session, a named one in both.
    fn selection(&self, value: &str) -> Option<Selection> {
        let discovery = self.setup.discovery;
        match value {
            "All" => discovery.then_some(Selection::All),
            "" => (!discovery).then_some(Selection::Current),
            name => Some(Selection::Named(name.to_owned())),
        }
    }

    /// The answer to [`Event::SendTargets`] of this connection.
    pub fn targets(&mut self, cid: u16, records: &[TargetRecord]) {
        let Some(exchange) = self.exchange(cid) else { return };
        let mut answer = Vec::from(std::mem::take(&mut exchange.answer));
        for record in records {
            text::push(&mut answer, "TargetName", &record.name);
            for (portal, group) in &record.portals {
                // An IPv6 address prints within brackets, as RFC 7143, 13.8 wants it.
                text::push(&mut answer, "TargetAddress", &format!("{portal},{group}"));
            }
        }
        exchange.answer = answer.into();
        self.send_text(cid);
    }

    /// Sends the next segment of the answer, as much as the initiator takes at once.
    fn send_text(&mut self, cid: u16) {
        let Some(connection) = self.connection(cid) else { return };
        let most = connection.segment_max as usize;
        let Some(exchange) = &mut connection.text else { return };
        let segment = exchange.answer.split_to(most.min(exchange.answer.len()));
        let more = !exchange.answer.is_empty();
        self.send_text_segment(cid, segment, more, more);
    }

    /// With `more`, the initiator is to come back with the tag this gives it (RFC 7143, 11.11.4);
    /// without, the exchange is over.
    fn send_text_segment(&mut self, cid: u16, segment: Bytes, more: bool, continues: bool) {
        let Some(connection) = self.connection(cid) else { return };
        let ttt = if more { connection.tag() } else { NO_TAG };
        let Some(exchange) = &mut connection.text else { return };
        exchange.ttt = ttt;
        let itt = exchange.itt;
        connection.text.take_if(|_| !more);
        self.send_status(cid, segment, |numbers| TextResponse {
            is_final: !more,
            continues,
            lun: 0,
            itt,
            ttt,
            stat_sn: numbers.stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
        });
    }

    fn exchange(&mut self, cid: u16) -> Option<&mut Exchange> {
        self.connection(cid)?.text.as_mut()
    }
}
