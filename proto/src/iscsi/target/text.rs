//! Text in the full-feature phase: SendTargets, and the little that can still be declared
//! (RFC 7143, 11.10, 11.11 and Appendix C).

use bytes::Bytes;

use super::session::Session;
use super::{Event, Selection, TargetRecord};
use crate::iscsi::header::{NO_TAG, RejectReason, TextRequest, TextResponse};
use crate::iscsi::negotiation;
use crate::iscsi::pdu::Pdu;
use crate::iscsi::text::{self, Assembly};

/// An exchange under way: one at a time (RFC 7143, 11.10).
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
    pub(super) fn on_text(&mut self, request: &TextRequest, pdu: &Pdu) {
        if request.ttt == NO_TAG {
            // A new exchange resets one left unfinished (RFC 7143, 11.10.4).
            self.text = Some(Exchange {
                itt: request.itt,
                ttt: NO_TAG,
                request: Assembly::default(),
                answer: Bytes::new(),
                answering: false,
            });
        }
        let Some(exchange) = self.text.as_mut().filter(|exchange| exchange.ttt == request.ttt)
        else {
            return self.reject(pdu, RejectReason::PROTOCOL_ERROR);
        };
        exchange.itt = request.itt;
        if exchange.answering {
            return self.send_text();
        }
        match exchange.request.add(&pdu.data, request.continues) {
            Err(_) => self.refuse_text(pdu),
            // RFC 7143, 11.11: an empty response that asks for the rest.
            Ok(None) => self.send_text_segment(request.itt, Bytes::new(), true, false),
            Ok(Some(whole)) => self.answer_text(&whole, pdu),
        }
    }

    fn refuse_text(&mut self, pdu: &Pdu) {
        self.text = None;
        self.reject(pdu, RejectReason::PROTOCOL_ERROR);
    }

    fn answer_text(&mut self, request: &[u8], pdu: &Pdu) {
        let Ok(pairs) = text::parse(request) else { return self.refuse_text(pdu) };
        let mut answer = Vec::new();
        let mut selection = None;
        for pair in pairs {
            if pair.key == "SendTargets" {
                match self.selection(pair.value) {
                    Some(chosen) => selection = Some(chosen),
                    None => text::push(&mut answer, pair.key, negotiation::REJECT),
                }
                continue;
            }
            match negotiation::full_feature(&mut self.parameters, pair) {
                Ok(Some(value)) => text::push(&mut answer, pair.key, value),
                Ok(None) => {}
                Err(_) => return self.refuse_text(pdu),
            }
        }
        if let Some(exchange) = &mut self.text {
            exchange.answering = true;
            exchange.answer = answer.into();
        }
        match selection {
            Some(selection) => self.events.push_back(Event::SendTargets(selection)),
            None => self.send_text(),
        }
    }

    /// RFC 7143, Appendix C: all targets only in a discovery session, the current one only in a normal
    /// session, a named one in both.
    fn selection(&self, value: &str) -> Option<Selection> {
        match value {
            "All" => self.discovery.then_some(Selection::All),
            "" => (!self.discovery).then_some(Selection::Current),
            name => Some(Selection::Named(name.to_owned())),
        }
    }

    /// The answer to [`Event::SendTargets`].
    pub fn targets(&mut self, records: &[TargetRecord]) {
        let Some(exchange) = &mut self.text else { return };
        let mut answer = Vec::from(std::mem::take(&mut exchange.answer));
        for record in records {
            text::push(&mut answer, "TargetName", &record.name);
            for (portal, group) in &record.portals {
                // An IPv6 address prints within brackets, as RFC 7143, 13.8 wants it.
                text::push(&mut answer, "TargetAddress", &format!("{portal},{group}"));
            }
        }
        exchange.answer = answer.into();
        self.send_text();
    }

    /// Sends the next segment of the answer, as much as the initiator takes at once.
    fn send_text(&mut self) {
        let most = self.parameters.max_send_data_segment as usize;
        let Some(exchange) = &mut self.text else { return };
        let segment = exchange.answer.split_to(most.min(exchange.answer.len()));
        let (itt, more) = (exchange.itt, !exchange.answer.is_empty());
        self.send_text_segment(itt, segment, more, more);
        if !more {
            self.text = None;
        }
    }

    /// With `more`, the initiator is to come back with the tag this gives it (RFC 7143, 11.11.4).
    fn send_text_segment(&mut self, itt: u32, segment: Bytes, more: bool, continues: bool) {
        let ttt = if more { self.connection.tag() } else { NO_TAG };
        if let Some(exchange) = &mut self.text {
            exchange.ttt = ttt;
        }
        let stat_sn = self.connection.use_stat_sn();
        let numbers = self.numbers();
        let header = TextResponse {
            is_final: !more,
            continues,
            lun: 0,
            itt,
            ttt,
            stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
        };
        self.connection.outbox.push_data(header, segment);
    }
}
