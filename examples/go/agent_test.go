package agent

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

func ask(t *testing.T, base, words string) string {
	t.Helper()
	body, _ := json.Marshal(map[string]any{"model": "m", "messages": []map[string]string{{"role": "user", "content": words}}})
	answer, err := http.Post(base+"/chat/completions", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	read, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != 200 {
		t.Fatal(string(read))
	}
	return string(read)
}

func TestWeather(t *testing.T) {
	for _, city := range []string{"London", "Paris", "Rome"} {
		t.Run(city, func(t *testing.T) {
			t.Parallel()
			if text := ask(t, baseURL(t), "rainy in "+city); !strings.Contains(text, "rainy in "+city) {
				t.Fatal(text)
			}
		})
	}
}
