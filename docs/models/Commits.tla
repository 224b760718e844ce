------------------------------ MODULE Commits ------------------------------
(* One table: one compare-and-set. Two tables: intents, one commit point, then  *)
(* each on its own. docs/protocol.md says it in words.                         *)
(*                                                                              *)
(* Locks are not here: they decide nothing. A helper may take any owner for     *)
(* dead at any time. A process that is paused for ever is one that is never     *)
(* chosen again; a crash of an owner is a step, so that `Done` can ask what it  *)
(* leaves behind.                                                               *)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    None,        \* a model value
    Txs,         \* transactions over both tables
    Committers,  \* regular commits to one of them
    Helpers,     \* whoever meets an intent or a record
    Readers,     \* load_tables
    Doubts,      \* how many answers are lost: such a write lands later, or never
    Mistake      \* "none", or what is done wrong

Tables == {1, 2}
Processes == Txs \cup Committers \cup Helpers \cup Readers

VARIABLES
    ptr,     \* pointers. `body` is what the metadata has in it: the changes it was made from
    rec,     \* pending records. (state, copy) is the tag: a write that is sent again makes another copy
    flight,  \* requests that were given up, and may land
    doubts,
    pc, loc, \* of each process: where it is, what it knows
    said     \* what its client was told: "yes", "no", or None

vars == <<ptr, rec, flight, doubts, pc, loc, said>>

Nobody == [w |-> None, tx |-> None, t |-> 1, met |-> None, yes |-> FALSE, tag |-> None, copy |-> 1,
           sight |-> [t \in Tables |-> None], is |-> [t \in Tables |-> "seen"],
           left |-> Tables, before |-> None]

Init ==
    /\ ptr = [t \in Tables |-> [ver |-> 1, body |-> {}, recent |-> {}, by |-> None, next |-> {}]]
    /\ rec = [x \in Txs |-> None]
    /\ flight = {}
    /\ doubts = Doubts
    /\ pc = [p \in Processes |-> IF p \in Helpers THEN "idle" ELSE "read"]
    /\ loc = [p \in Processes |-> Nobody]
    /\ said = [p \in Processes |-> None]

(* What a table says: its body, unless its intent is decided as committed. *)
Committed(x) == rec[x] # None /\ rec[x].state = "committed"
Value(t) == IF ptr[t].by # None /\ Committed(ptr[t].by) THEN ptr[t].next ELSE ptr[t].body

-----------------------------------------------------------------------------
(* The store: compare-and-set on an object, and answers in doubt. *)

PtrWrite(t, seen, new) == [on |-> "ptr", t |-> t, ver |-> seen.ver, new |-> [new EXCEPT !.ver = seen.ver + 1]]
AddWrite(x, copy) == [on |-> "rec", x |-> x, old |-> None, new |-> [state |-> "pending", copy |-> copy]]
RecWrite(x, old, new) == [on |-> "rec", x |-> x, old |-> old, new |-> new]

Matches(w) == IF w.on = "ptr" THEN ptr[w.t].ver = w.ver ELSE rec[w.x] = w.old

Put(w) ==
    IF w.on = "ptr" THEN ptr' = [ptr EXCEPT ![w.t] = w.new] /\ UNCHANGED rec
                    ELSE rec' = [rec EXCEPT ![w.x] = w.new] /\ UNCHANGED ptr

End(p) == IF p \in Helpers THEN "idle" ELSE "end"
First == IF Mistake = "early" THEN "remove" ELSE "settle"

(* Arriving at a place. What is known is forgotten where it is of no use any more, so that fewer states differ. *)
Arrive(p, place, my) ==
    LET at(where, known) == pc' = [pc EXCEPT ![p] = where] /\ loc' = [loc EXCEPT ![p] = known]
        tell(answer) == said' = [said EXCEPT ![p] = answer]
        won == [Nobody EXCEPT !.tx = p, !.yes = TRUE, !.tag = [state |-> "committed", copy |-> my.copy]]
        lost == [Nobody EXCEPT !.tx = p, !.yes = FALSE, !.tag = [state |-> "aborted", copy |-> my.copy]]
    IN
    CASE place = "won" -> at(First, won) /\ tell("yes")
      [] place = "lost" -> at("lost", lost) /\ tell("no")
      [] place = "acked" -> at("acked", Nobody) /\ tell("yes")
      [] place \in {"end", "dead", "idle"} -> at(place, Nobody) /\ UNCHANGED said
      [] OTHER -> at(place, my) /\ UNCHANGED said

(* Send `w`, then go on at `ok`, at `changed`, or, when nobody answers, at `ask`. *)
Send(p, w, force, ok, changed, ask) ==
    \/ /\ IF force \/ Matches(w) THEN Put(w) /\ Arrive(p, ok, loc[p])
                                    ELSE UNCHANGED <<ptr, rec>> /\ Arrive(p, changed, loc[p])
       /\ UNCHANGED <<flight, doubts>>
    \/ /\ doubts > 0
       /\ doubts' = doubts - 1
       /\ flight' = flight \cup {w}
       /\ Arrive(p, ask, loc[p])
       /\ UNCHANGED <<ptr, rec>>

Land == \E w \in flight :
    /\ flight' = IF Mistake = "duplicates" /\ w.on = "rec" THEN flight ELSE flight \ {w}
    /\ IF Matches(w) THEN Put(w) ELSE UNCHANGED <<ptr, rec>>
    /\ (Mistake = "duplicates" /\ w.on = "rec") => Matches(w)
    /\ UNCHANGED <<doubts, pc, loc, said>>

Drop == \E w \in flight :
    /\ flight' = flight \ {w}
    /\ UNCHANGED <<ptr, rec, doubts, pc, loc, said>>

With(p, place, known) == Arrive(p, place, known) /\ UNCHANGED <<ptr, rec, flight, doubts>>
Only(p, place) == With(p, place, loc[p])

(* An answer in doubt: what is there decides. Ours: fine. The tag we need: it is sent again, in the same step, for *)
(* were it refused, we would look again. Anything else: it can never land.                                         *)
Ask(p, w, ours, ok, changed, ask) ==
    IF ours THEN Only(p, ok)
    ELSE IF Matches(w) THEN Send(p, w, FALSE, ok, ask, ask)
    ELSE Only(p, changed)

-----------------------------------------------------------------------------
(* Commits: read, write by tag; in doubt, look for our id in what is there. *)

Commit(p) ==
    \/ /\ pc[p] = "read"
       /\ \E t \in Tables :
            /\ ptr[t].by = None   \* else it waits for a helper, or is one
            /\ With(p, "write", [loc[p] EXCEPT !.w = PtrWrite(t, ptr[t],
                  [ptr[t] EXCEPT !.body = @ \cup {p}, !.recent = @ \cup {p}])])
    \/ /\ pc[p] = "write"
       /\ Send(p, loc[p].w, Mistake = "blind", "acked", "read", "ask")
    \/ /\ pc[p] = "ask"
       /\ Ask(p, loc[p].w, p \in ptr[loc[p].w.t].recent, "acked", "read", "ask")

-----------------------------------------------------------------------------
(* Settling: owner and helper do the same. `loc.yes` is the decision. *)

Settled(cur, yes, x) ==
    IF yes THEN [cur EXCEPT !.body = cur.next, !.recent = @ \cup {x}, !.by = None, !.next = {}]
           ELSE [cur EXCEPT !.by = None, !.next = {}]

Onward(p, my, t) ==  \* one participant is done
    IF my.met # None THEN With(p, End(p), my)
    ELSE IF my.left # {t} THEN With(p, "settle", [my EXCEPT !.left = @ \ {t}, !.w = None])
    ELSE With(p, IF Mistake = "early" THEN End(p) ELSE "remove", [my EXCEPT !.left = {}, !.w = None])

Settle(p) ==
    LET my == loc[p]
        else == IF Mistake = "early" THEN "settle" ELSE End(p)
    IN
    \/ /\ pc[p] = "settle"
       /\ \E t \in IF my.met # None THEN {my.met} ELSE my.left :
            IF ptr[t].by = my.tx
            THEN With(p, "settling", [my EXCEPT !.w = PtrWrite(t, ptr[t], Settled(ptr[t], my.yes, my.tx))])
            ELSE Onward(p, my, t)
    \/ /\ pc[p] = "settling"
       /\ Send(p, my.w, Mistake = "redo", "settle", "settle", "settle")
    \/ /\ pc[p] = "remove"
       /\ Send(p, RecWrite(my.tx, my.tag, None), FALSE, else, else, "remove")

(* A helper meets an intent, or a record, of a change of any age. *)
Help(p) ==
    \/ /\ pc[p] = "idle"
       /\ \/ \E t \in Tables : ptr[t].by # None /\ With(p, "record", [Nobody EXCEPT !.tx = ptr[t].by, !.met = t])
          \/ \E x \in Txs : rec[x] # None /\ With(p, "record", [Nobody EXCEPT !.tx = x])
    \/ /\ pc[p] = "record"
       /\ LET found == rec[loc[p].tx] IN
            IF found = None
            THEN IF loc[p].met # None THEN With(p, "settle", [loc[p] EXCEPT !.yes = FALSE]) ELSE Only(p, "idle")
            ELSE IF found.state = "pending" /\ Mistake # "unlooked"
            THEN With(p, "abort", [loc[p] EXCEPT !.tag = found])
            ELSE With(p, First, [loc[p] EXCEPT !.tag = found, !.yes = found.state # "aborted", !.met = None])
    \/ /\ pc[p] = "abort"
       /\ Send(p, RecWrite(loc[p].tx, loc[p].tag, [loc[p].tag EXCEPT !.state = "aborted"]), FALSE,
               "record", "record", "record")
    \/ Settle(p)

-----------------------------------------------------------------------------
(* A transaction over both tables. *)

Intent(p, t, next) == LET seen == loc[p].sight[t] IN PtrWrite(t, seen, [seen EXCEPT !.by = p, !.next = next])
Full(p, t) == Intent(p, t, loc[p].sight[t].body \cup {p})
Reserving(p, t) == Intent(p, t, loc[p].sight[t].body)

Pending(p) == [state |-> "pending", copy |-> loc[p].copy]
CommitWrite(p) == RecWrite(p, Pending(p), [Pending(p) EXCEPT !.state = "committed"])

(* Where a commit was first, the table is taken by an intent to leave it as it is; on that it is validated again. *)
Intend(p, t) ==
    LET my == loc[p]
        now(is) == [my EXCEPT !.is[t] = is]
        to(is) == With(p, "intend", now(is))
        write(w, ok, changed, ask) ==
            \/ /\ IF Matches(w)
                  THEN Put(w) /\ Arrive(p, "intend", [now(ok) EXCEPT !.sight[t] = IF ok = "set" THEN None ELSE w.new])
                  ELSE UNCHANGED <<ptr, rec>> /\ Arrive(p, "intend", now(changed))
               /\ UNCHANGED <<flight, doubts>>
            \/ /\ doubts > 0
               /\ doubts' = doubts - 1
               /\ flight' = flight \cup {w}
               /\ Arrive(p, "intend", now(ask))
               /\ UNCHANGED <<ptr, rec>>
        asked(w, ok, changed, ask) ==
            IF ptr[t] = w.new THEN With(p, "intend", [now(ok) EXCEPT !.sight[t] = IF ok = "set" THEN None ELSE w.new])
            ELSE IF Matches(w) THEN write(w, ok, ask, ask)
            ELSE to(changed)
    IN
    \/ my.is[t] = "seen" /\ write(Full(p, t), "set", "again", "set?")
    \/ my.is[t] = "set?" /\ asked(Full(p, t), "set", "again", "set?")
    \/ /\ my.is[t] = "again"
       /\ \/ ptr[t].by = None /\ With(p, "intend", [now("looked") EXCEPT !.sight[t] = ptr[t]])
          \/ to("over")           \* another change is at work
    \/ my.is[t] = "looked" /\ write(Reserving(p, t), "taken", "again", "taken?")
    \/ my.is[t] = "taken?" /\ asked(Reserving(p, t), "taken", "again", "taken?")
    \/ my.is[t] = "taken" /\ write(Full(p, t), "set", "over", "full?")
    \/ my.is[t] = "full?" /\ asked(Full(p, t), "set", "over", "full?")
    \/ my.is[t] = "taken" /\ to("over")   \* a requirement holds no more

Transact(p) ==
    LET my == loc[p] IN
    \/ /\ pc[p] = "read"          \* validate
       /\ ptr[my.t].by = None
       /\ With(p, IF my.t = 1 THEN "read" ELSE "add",
               [my EXCEPT !.sight[my.t] = ptr[my.t], !.t = 3 - my.t, !.tx = p])
    \/ /\ pc[p] = "add"           \* 2: the record
       /\ Send(p, AddWrite(p, my.copy), FALSE, "intend", "ask add", "ask add")
    \/ /\ pc[p] = "ask add"
       /\ IF rec[p] = None
          THEN With(p, "add", [my EXCEPT !.copy = IF Mistake = "duplicates" THEN 1 ELSE @ + 1])
          ELSE IF rec[p].state = "pending" THEN With(p, "intend", [my EXCEPT !.copy = rec[p].copy])
          ELSE Only(p, "lost")    \* aborted by a helper before we knew that it is there
    \/ /\ pc[p] = "intend"        \* 3: the intents, side by side
       /\ \/ \E t \in Tables : Intend(p, t)
          \/ \A t \in Tables : my.is[t] = "set" /\ With(p, "commit", [Nobody EXCEPT !.copy = my.copy])
          \/ /\ \A t \in Tables : my.is[t] \in {"set", "over"}
             /\ \E t \in Tables : my.is[t] = "over"
             /\ With(p, "undo", [Nobody EXCEPT !.copy = my.copy])
    \/ /\ pc[p] = "commit"        \* 4: the commit point
       /\ Send(p, CommitWrite(p), FALSE, "won", "was it", "ask commit")
    \/ /\ pc[p] = "ask commit"
       /\ Ask(p, CommitWrite(p), rec[p] # None /\ rec[p].state = "committed", "won", "was it", "ask commit")
    \/ /\ pc[p] = "was it"
       /\ Only(p, IF rec[p] # None /\ rec[p].state = "committed" THEN "won"
                  ELSE IF rec[p] # None /\ Mistake = "believe the record" THEN "lost" ELSE "remembers")
    \/ /\ pc[p] = "remembers"     \* participants remember what was committed
       /\ Only(p, IF p \in ptr[1].recent THEN "won" ELSE "lost")
    \/ /\ pc[p] = "undo"
       /\ Send(p, RecWrite(p, Pending(p), [Pending(p) EXCEPT !.state = "aborted"]), FALSE, "lost", "lost", "undo")
    \/ /\ pc[p] = "lost"
       /\ Only(p, IF rec[p] = None \/ rec[p].state = "aborted" THEN "settle" ELSE "end")
    \/ Settle(p)

Crash(p) == pc[p] \notin {"end", "dead"} /\ Only(p, "dead")

-----------------------------------------------------------------------------
(* A reader of both tables: twice, until nothing has moved in between. *)

Told(p, cur, value) ==
    LET my == loc[p]
        all == [my.sight EXCEPT ![my.t] = [ver |-> cur.ver, body |-> value]]
    IN  IF my.t = 1 THEN With(p, "read", [my EXCEPT !.sight = all, !.t = 2, !.w = None])
        ELSE IF Mistake = "once" \/ all = my.before
        THEN With(p, "told", [Nobody EXCEPT !.sight = all])
        ELSE With(p, "read", [Nobody EXCEPT !.before = all])

Read(p) ==
    LET my == loc[p]
        cur == ptr[my.t]
    IN
    \/ /\ pc[p] = "read"
       /\ IF cur.by = None THEN Told(p, cur, cur.body) ELSE With(p, "decided", [my EXCEPT !.w = cur])
    \/ /\ pc[p] = "decided"
       /\ IF rec[my.w.by] = None THEN Only(p, "still there")
          ELSE Told(p, my.w, IF Committed(my.w.by) THEN my.w.next ELSE my.w.body)
    \/ /\ pc[p] = "still there"
       /\ IF cur = my.w THEN Told(p, my.w, my.w.body) ELSE Only(p, "read")

-----------------------------------------------------------------------------
Done ==  \* nothing is left over, and everybody knows. Where nothing can happen and this is not so, TLC says "deadlock"
    /\ \A t \in Tables : ptr[t].by = None
    /\ \A x \in Txs : rec[x] = None /\ pc[x] \in {"end", "dead"}
    /\ \A p \in Committers : pc[p] = "acked"
    /\ \A p \in Readers : pc[p] = "told"

Next ==
    \/ Done /\ UNCHANGED vars
    \/ \E p \in Txs : Transact(p) \/ Crash(p)
    \/ \E p \in Committers : Commit(p)
    \/ \E p \in Helpers : Help(p)
    \/ \E p \in Readers : Read(p)
    \/ Land
    \/ Drop

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold in every state. *)

Acknowledged ==  \* what was acknowledged is there, and stays
    /\ \A p \in Committers : said[p] = "yes" => \E t \in Tables : p \in Value(t)
    /\ \A p \in Txs : said[p] = "yes" => \A t \in Tables : p \in Value(t)

Refused ==       \* what was refused has changed nothing
    \A p \in Txs : said[p] = "no" => \A t \in Tables : p \notin Value(t)

Whole ==         \* all of a transaction, or nothing
    \A p \in Txs : p \in Value(1) <=> p \in Value(2)

Seen ==          \* and nobody sees anything else
    \A p \in Readers : pc[p] = "told" =>
        \A x \in Txs : x \in loc[p].sight[1].body <=> x \in loc[p].sight[2].body

Kept ==          \* no decided value is ever taken back: neither by a late write nor by recovery, however often
    [][\A t \in Tables : Value(t) \subseteq Value(t)']_vars

Alike == Permutations(Txs)  \* where they are model values
=============================================================================
